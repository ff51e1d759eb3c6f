package spec

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// RemoveCrunDefaults leaves out of a spec for crun what crun adds anyway: the device rules that each
// container has. Written twice they are twice in the program of the cgroup, and to
// verify it takes the kernel eight microseconds an instruction. What is denied, and
// whatever else is allowed, stays.
func RemoveCrunDefaults(spec *specs.Spec) {
	usual, r := deviceRules(), spec.Linux.Resources
	r.Devices = slices.DeleteFunc(r.Devices, func(d specs.LinuxDeviceCgroup) bool {
		return d.Allow && slices.ContainsFunc(usual, func(u specs.LinuxDeviceCgroup) bool { return equalRules(d, u) })
	})
}

func equalRules(a, b specs.LinuxDeviceCgroup) bool {
	return a.Allow == b.Allow && a.Type == b.Type && a.Access == b.Access && equalNumbers(a.Major, b.Major) && equalNumbers(a.Minor, b.Minor)
}

// equalNumbers: nil is any.
func equalNumbers(a, b *int64) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// deviceRules allows what every container has, and denies all else. Nodes may
// not even be made (no wildcard "m" rule): the runtime makes those it needs.
func deviceRules() []specs.LinuxDeviceCgroup {
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	for _, d := range [][2]int64{
		{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, // null zero full random urandom
		{5, 0}, {5, 1}, {5, 2}, // tty console ptmx
	} {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &d[0], Minor: &d[1], Access: "rwm"})
	}
	pts := int64(136)
	return append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &pts, Access: "rwm"})
}
