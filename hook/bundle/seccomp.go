package bundle

import (
	"bytes"

	"github.com/berth-gpu/berth/cdi/edits"
)

// rulesPath is the path of the rules of a system call filter.
const rulesPath = "linux.seccomp.syscalls"

// listOrEmpty returns an empty list for one that the encoder has left out.
func listOrEmpty(list []byte) []byte {
	if list == nil {
		return []byte("[]")
	}
	return list
}

// splitRules divides the rules of a system call filter into those that edits can change
// and all others, which are carried as they stand. A rule with escapes may be one of the
// former, and counts as such.
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

// mergeRules carries over a change of the rules that were decoded. The others come
// first: the order of rules of different system calls means nothing.
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
