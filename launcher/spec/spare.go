package spec

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Spare leaves out of a spec for crun what crun adds anyway: the device rules that each
// container has. Written twice they are twice in the program of the cgroup, and to
// verify it takes the kernel eight microseconds an instruction. What is denied, and
// whatever else is allowed, stays.
func Spare(spec *specs.Spec) {
	usual, r := deviceRules(), spec.Linux.Resources
	r.Devices = slices.DeleteFunc(r.Devices, func(d specs.LinuxDeviceCgroup) bool {
		return d.Allow && slices.ContainsFunc(usual, func(u specs.LinuxDeviceCgroup) bool { return sameRule(d, u) })
	})
}

func sameRule(a, b specs.LinuxDeviceCgroup) bool {
	return a.Allow == b.Allow && a.Type == b.Type && a.Access == b.Access && sameNumber(a.Major, b.Major) && sameNumber(a.Minor, b.Minor)
}

// sameNumber: nil is any.
func sameNumber(a, b *int64) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
