package bundle

import (
	"bytes"

	"github.com/berth-gpu/berth/cdi/edits"
)

// rulesPath is where the rules of a filter of system calls are.
const rulesPath = "linux.seccomp.syscalls"

// listOrEmpty is an empty list where an encoder has left it out.
func listOrEmpty(list []byte) []byte {
	if list == nil {
		return []byte("[]")
	}
	return list
}

// splitRules parts the rules of a filter of system calls: those that edits can change, and
// all others, which are carried as they stand. A rule that isn't written plainly may be
// one of the former.
func splitRules(rules []byte) (others, ours [][]byte) {
	for _, rule := range splitElements(rules) {
		if namesMemoryPolicy(rule) {
			ours = append(ours, rule)
		} else {
			others = append(others, rule)
		}
	}
	return others, ours
}

func namesMemoryPolicy(rule []byte) bool {
	for _, name := range edits.MemoryPolicy() {
		if bytes.Contains(rule, []byte(`"`+name+`"`)) {
			return true
		}
	}
	return bytes.IndexByte(rule, '\\') >= 0
}

// mergeRules carries over a change of the rules that were decoded: the others come first,
// for between rules of different calls the order means nothing.
func mergeRules(raw, was, now []byte) []byte {
	if bytes.Equal(was, now) {
		return raw
	}
	others, ours := splitRules(raw)
	changed := mergeArray(joinElements(ours), was, now, rulesPath)
	return joinElements(append(others, splitElements(changed)...))
}

// joinElements writes elements as a list.
func joinElements(all [][]byte) []byte {
	return append(append([]byte{'['}, bytes.Join(all, []byte{','})...), ']')
}
