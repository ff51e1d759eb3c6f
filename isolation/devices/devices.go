// Package devices sets the device rules of existing cgroups: of a container that is being created or
// runs, and of the outer cgroup that berth puts around one.
//
// A list of rules is compiled into a program of the kernel's device hook on cgroup v2 ([Compile]),
// and written as a list of exceptions on version 1. [Apply] gives a container's cgroup its rules,
// [CreateOuterCgroup] creates an outer cgroup, whose rules the container can't change, and [WriteUnitRules]
// tells systemd the rules of a unit's cgroup.
//
// The meaning of a rule list: each letter of an access (r, w, m) is decided by the last rule that
// matches the device and has that letter. All letters must be allowed. Without a matching rule the
// access is denied. A rule of type "a" (or "") matches every device, whatever its numbers: runc and
// cgroup v1 read it so. If its numbers or access would suggest a narrower meaning, the rule is
// refused. [Allowed] evaluates a list by this definition; tests compare the program with it.
//
// Package devices doesn't decide which rules are set (package isolation does). It can't restrict a
// process that has CAP_SYS_ADMIN and access to the cgroup's directory: see [CreateOuterCgroup].
//
// Linux 5.6 is needed for version 2 (a program is replaced in one step); before 5.11
// the program counts against RLIMIT_MEMLOCK.
package devices

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/cdi/edits"
)

const (
	maxMajor = 1<<12 - 1 // of the kernel's dev_t
	maxMinor = 1<<20 - 1
	// maxAccess is the number of letters that cgroup v1 reads of a rule's access.
	maxAccess = 3
)

// Defaults are the rules that runc gives every container after those of its spec: mknod of any
// device is allowed, and opening the default devices of the OCI specification. They are part of what
// [Apply] sets.
func Defaults() []edits.Rule {
	return []edits.Rule{
		{Allow: true, Type: "c", Major: edits.Any, Minor: edits.Any, Access: "m"},
		{Allow: true, Type: "b", Major: edits.Any, Minor: edits.Any, Access: "m"},
		{Allow: true, Type: "c", Major: 1, Minor: 3, Access: "rwm"}, // null
		{Allow: true, Type: "c", Major: 1, Minor: 5, Access: "rwm"}, // zero
		{Allow: true, Type: "c", Major: 1, Minor: 7, Access: "rwm"}, // full
		{Allow: true, Type: "c", Major: 1, Minor: 8, Access: "rwm"}, // random
		{Allow: true, Type: "c", Major: 1, Minor: 9, Access: "rwm"}, // urandom
		{Allow: true, Type: "c", Major: 5, Minor: 0, Access: "rwm"}, // tty
		{Allow: true, Type: "c", Major: 5, Minor: 2, Access: "rwm"}, // ptmx
		{Allow: true, Type: "c", Major: 10, Minor: 200, Access: "rwm"},
		{Allow: true, Type: "c", Major: 136, Minor: edits.Any, Access: "rwm"}, // pts
	}
}

// Check returns an error unless all runtimes read the rule the same way: it has a known type, valid
// device numbers, and an access of r, w and m.
func Check(r edits.Rule) error {
	switch r.Type {
	case "", "a", "b", "c":
	default:
		return fmt.Errorf("type %q is none of a, b and c", r.Type)
	}
	if len(r.Access) > maxAccess || strings.Trim(r.Access, "rwm") != "" {
		return fmt.Errorf("access %q isn't made of r, w and m", r.Access)
	}
	if r.Major != edits.Any && (r.Major < 0 || r.Major > maxMajor) {
		return fmt.Errorf("major %d is no device number", r.Major)
	}
	if r.Minor != edits.Any && (r.Minor < 0 || r.Minor > maxMinor) {
		return fmt.Errorf("minor %d is no device number", r.Minor)
	}
	return nil
}

// checkAll checks a list that is to be set. It also refuses a rule of type "a" that allows and names
// a device, because its meaning is ambiguous.
func checkAll(rules []edits.Rule) error {
	for _, r := range rules {
		err := Check(r)
		if err == nil && r.Allow && MatchesAll(r) && (r.Major != edits.Any || r.Minor != edits.Any || accessBits(r.Access) != everything) {
			err = fmt.Errorf("runtimes read it as all devices, or as fewer")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", Format(r), err)
		}
	}
	return nil
}

// MatchesAll reports whether the rule matches every device. runc and cgroup v1 ignore the numbers
// and the access of a rule of type "a".
func MatchesAll(r edits.Rule) bool { return r.Type == "" || r.Type == "a" }

// Format returns the rule in the notation of cgroup v1, for messages: "allow c 195:* rw".
func Format(r edits.Rule) string {
	verb := "deny"
	if r.Allow {
		verb = "allow"
	}
	return verb + " " + Entry(r)
}

// Entry returns the rule in the form of devices.allow and devices.list of cgroup v1: "c 195:* rw".
func Entry(r edits.Rule) string {
	return fmt.Sprintf("%s %s:%s %s", cmp.Or(r.Type, "a"), numberOrStar(r.Major), numberOrStar(r.Minor), r.Access)
}

func numberOrStar(n int64) string {
	if n == edits.Any {
		return "*"
	}
	return fmt.Sprint(n)
}

// Allowed reports whether the rules allow all letters of access for a device of kind "c" or "b". An
// empty access is allowed: access(2) with F_OK has none.
func Allowed(rules []edits.Rule, kind string, major, minor int64, access string) bool {
	for _, letter := range access {
		if !allowedOne(rules, kind, major, minor, letter) {
			return false
		}
	}
	return true
}

func allowedOne(rules []edits.Rule, kind string, major, minor int64, letter rune) bool {
	for _, r := range slices.Backward(rules) {
		if MatchesAll(r) {
			return r.Allow
		}
		if r.Type == kind && (r.Major == edits.Any || r.Major == major) && (r.Minor == edits.Any || r.Minor == minor) &&
			strings.ContainsRune(r.Access, letter) {
			return r.Allow
		}
	}
	return false
}
