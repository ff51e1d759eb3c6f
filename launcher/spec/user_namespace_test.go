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
		hasGroup := func(gid uint32) bool { return gid == 0 }
		c := sampleContainer()
		c.HostNetwork, c.HostIPC = shared, shared
		s, plain := New(c), New(c)
		s.Process.User = specs.User{AdditionalGids: []uint32{0, 44}}
		s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
		RestrictToUserNamespace(s, hasGroup)
		if len(s.Process.User.AdditionalGids) > 0 || s.Annotations[keepGroups] != "1" || s.Linux.Resources.Devices != nil {
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
		if readOnly := map[bool]string{false: "ro", true: "rro"}[shared]; !slices.Contains(find(s, "/sys").Options, readOnly) {
			t.Errorf("%+v can be written to", find(s, "/sys"))
		}
	}
}

// Root of a user namespace keeps the groups of the user outside, and other users get those groups of their image that the namespace has.
func TestRestrictGroups(t *testing.T) {
	c := sampleContainer()
	for _, uid := range []uint32{0, 1000} {
		s := New(c)
		s.Process.User = specs.User{UID: uid, AdditionalGids: []uint32{4, 44, 70000}}
		RestrictToUserNamespace(s, func(gid uint32) bool { return gid <= 65536 })
		var want []uint32
		if uid != 0 {
			want = []uint32{4, 44}
		}
		if got := s.Process.User.AdditionalGids; !slices.Equal(got, want) || (s.Annotations[keepGroups] == "1") != (uid == 0) {
			t.Errorf("user %d: %v, annotations %v", uid, got, s.Annotations)
		}
		if !slices.ContainsFunc(s.Mounts, func(m specs.Mount) bool { return slices.Contains(m.Options, "gid=5") }) {
			t.Errorf("user %d: %v", uid, s.Mounts)
		}
	}
}
