// Package devices makes device rules hold for cgroups that exist: of a container
// that is being made or runs, and of a cgroup of berth's own around one.
//
// A list of rules is compiled into a program of the kernel's device hook on cgroup
// v2 ([Compile]), and written as a list of exceptions on version 1. [Apply] gives a
// container's cgroup its rules, [MakeOuter] makes a cgroup around a container whose
// rules it can't reach, [TellSystemd] has systemd know them where it owns the cgroup.
//
// What a list means: each letter of an access is decided by the last rule that
// speaks of the device and of that letter; all letters must be allowed; what no
// rule speaks of is denied. A rule of the type "a" (or "") speaks of everything,
// whatever else is written in it: this is how runc and cgroup v1 read it, and where
// that isn't the narrow reading, the rule is refused. [Allowed] is that meaning,
// written down once more for tests and for who wants to know.
//
// Package devices doesn't decide which rules there are (package isolation does), and
// can't hold back a process that reaches the cgroup's directory and has
// CAP_SYS_ADMIN: see [MakeOuter].
//
// Linux 5.6 is needed for version 2 (a program is replaced in one step); before 5.11
// the program counts against RLIMIT_MEMLOCK.
package devices

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/cdi/edits"
)

const (
	maxMajor = 1<<12 - 1 // of the kernel's dev_t
	maxMinor = 1<<20 - 1
	// maxAccess letters are what cgroup v1 reads of a rule.
	maxAccess = 3
)

// Defaults are the rules that runc gives every container after those of its spec:
// nodes may be made, and the devices opened that the OCI specification provides.
// They are part of what [Apply] sets.
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

// Check returns an error unless the rule is plain: of a known type, with numbers
// that devices have, and access that runtimes all read alike.
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

// checkAll is [Check] for a list that is to be set. An allowance of everything that
// names a device has no one meaning.
func checkAll(rules []edits.Rule) error {
	for _, r := range rules {
		err := Check(r)
		if err == nil && r.Allow && Total(r) && (r.Major != edits.Any || r.Minor != edits.Any || accessBits(r.Access) != everything) {
			err = fmt.Errorf("it can be read as all devices, and as less")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", Text(r), err)
		}
	}
	return nil
}

// Total says that the rule speaks of every device: runc, and the kernel of cgroup
// v1, ignore the numbers and the access beside the type "a".
func Total(r edits.Rule) bool { return r.Type == "" || r.Type == "a" }

// Text is the rule in the words of cgroup v1, for people: "allow c 195:* rw".
func Text(r edits.Rule) string {
	verb := "deny"
	if r.Allow {
		verb = "allow"
	}
	return verb + " " + v1Entry(r)
}

// v1Entry is the rule as the files of cgroup v1 have it, and list it.
func v1Entry(r edits.Rule) string {
	kind := r.Type
	if kind == "" {
		kind = "a"
	}
	return fmt.Sprintf("%s %s:%s %s", kind, numberOrStar(r.Major), numberOrStar(r.Minor), r.Access)
}

func numberOrStar(n int64) string {
	if n == edits.Any {
		return "*"
	}
	return fmt.Sprint(n)
}

// Allowed says whether the rules let a device of the kind "c" or "b" be used in all
// the ways that access names. An access of no letter only asks whether the node is
// there, as access(2) does, and is allowed.
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
		if Total(r) {
			return r.Allow
		}
		if r.Type == kind && (r.Major == edits.Any || r.Major == major) && (r.Minor == edits.Any || r.Minor == minor) &&
			strings.ContainsRune(r.Access, letter) {
			return r.Allow
		}
	}
	return false
}
