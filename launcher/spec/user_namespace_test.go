package spec

import (
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// What root of a user namespace can't do is removed from a spec, and nothing else.
func TestRestrictToUserNamespace(t *testing.T) {
	find := func(s *specs.Spec, at string) specs.Mount {
		return s.Mounts[slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == at })]
	}
	for _, shared := range []bool{false, true} {
		c := sampleContainer()
		c.HostNetwork, c.HostIPC = shared, shared
		s, plain := New(c), New(c)
		s.Process.User.AdditionalGids = []uint32{0, 44}
		s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
		RestrictToUserNamespace(s)
		if s.Process.User.AdditionalGids != nil || s.Linux.Resources.Devices != nil {
			t.Errorf("groups %v, rules %v", s.Process.User.AdditionalGids, s.Linux.Resources.Devices)
		}
		if len(s.Mounts) != len(plain.Mounts) || slices.Contains(find(s, "/dev/pts").Options, "gid=5") {
			t.Errorf("mounts %v", s.Mounts)
		}
		for _, at := range []string{"/sys", "/dev/mqueue"} {
			m := find(s, at)
			if (m.Type == "bind") != shared || shared && (m.Source != at || !slices.Contains(m.Options, "rbind") || !slices.Contains(m.Options, "noexec")) {
				t.Errorf("shared %t: %+v", shared, m)
			}
		}
		if !slices.Contains(find(s, "/sys").Options, "ro") {
			t.Errorf("%+v can be written to", find(s, "/sys"))
		}
	}
}
