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

// editedRules returns the rules of a system call filter that edits can change. mergeRules
// carries all others as they stand. A rule with escapes may be one of the former, and counts
// as such.
func editedRules(rules []byte) (ours [][]byte) {
	for _, rule := range splitElements(rules) {
		if namesEditedCall(rule) {
			ours = append(ours, rule)
		}
	}
	return ours
}

func namesEditedCall(rule []byte) bool {
	for _, name := range edits.EditedCalls() {
		if bytes.Contains(rule, []byte(`"`+name+`"`)) {
			return true
		}
	}
	return bytes.IndexByte(rule, '\\') >= 0
}

// mergeRules applies a change of the rules that were decoded. Rules keep their places: libseccomp refuses
// rules of one system call in some orders. A rule of now that has no place in raw comes last.
func mergeRules(raw, was, now []byte) []byte {
	if bytes.Equal(was, now) {
		return raw
	}
	changed := splitElements(mergeArray(joinElements(editedRules(raw)), was, now, rulesPath))
	before, after := splitElements(was), splitElements(now)
	var out [][]byte
	for _, rule := range splitElements(raw) {
		if !namesEditedCall(rule) {
			out = append(out, rule)
			continue
		}
		if len(after) > 0 && isNarrowed(before[0], after[0]) {
			out = append(out, changed[0])
			changed, after = changed[1:], after[1:]
		}
		before = before[1:]
	}
	return joinElements(append(out, changed...))
}

// isNarrowed reports whether now is the encoded rule was, or that rule without some of its names.
func isNarrowed(was, now []byte) bool {
	before, after := valuesOf(splitMembers(was)), valuesOf(splitMembers(now))
	for _, key := range []string{"action", "args", "errnoRet"} {
		if !bytes.Equal(before.lookUp(key), after.lookUp(key)) {
			return false
		}
	}
	names := map[string]bool{}
	for _, name := range splitElements(before.lookUp("names")) {
		names[string(name)] = true
	}
	for _, name := range splitElements(after.lookUp("names")) {
		if !names[string(name)] {
			return false
		}
	}
	return true
}

// joinElements writes elements as a list.
func joinElements(all [][]byte) []byte {
	return append(append([]byte{'['}, bytes.Join(all, []byte{','})...), ']')
}
