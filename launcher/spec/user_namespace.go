package spec

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// RestrictToUserNamespace changes the spec of a container so that root of a user namespace can start it. The runtime
// makes no user namespace below it. It must come after all other changes of the spec. hasGroup is [userns.HasGroup].
//
// Device nodes become bind mounts of the host's, which runtimes do themselves. There are no device rules, for only root of
// the machine can set them: a container can't make nodes either, and the device guard decides which ones open. sysfs belongs to
// the owner of the network, and mqueue to that of the IPC namespace, so that of the host is bound.
func RestrictToUserNamespace(s *specs.Spec, hasGroup func(gid uint32) bool) {
	RestrictGroups(&s.Process.User, hasGroup)
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	if s.Process.User.UID == 0 {
		s.Annotations[keepGroups] = "1"
	}
	s.Linux.Resources.Devices = nil
	for i, m := range s.Mounts {
		switch {
		case m.Type == "devpts" && !hasGroup(ttyGroup):
			s.Mounts[i].Options = slices.DeleteFunc(slices.Clone(m.Options), func(o string) bool { return strings.HasPrefix(o, "gid=") })
		case m.Type == "sysfs" && !hasNamespace(s, specs.NetworkNamespace):
			s.Mounts[i] = bindOf(m, "/sys")
		case m.Type == "mqueue" && !hasNamespace(s, specs.IPCNamespace):
			s.Mounts[i] = bindOf(m, "/dev/mqueue")
		}
	}
}

// ttyGroup is the group of terminals of the container, "gid=5" of its devpts.
const ttyGroup = 5

// keepGroups is an annotation by which crun keeps the groups of its caller, and sets none. runc has no such annotation, and drops the caller's
// groups where the user namespace has others. Source: crun(1), "run.oci.keep_original_groups".
const keepGroups = "run.oci.keep_original_groups"

// RestrictGroups removes from the groups of a container's user those that the user namespace doesn't have. Root is the user
// outside, whose groups it keeps.
func RestrictGroups(u *specs.User, hasGroup func(gid uint32) bool) {
	if u.UID == 0 {
		u.AdditionalGids = nil
	}
	u.AdditionalGids = slices.DeleteFunc(slices.Clone(u.AdditionalGids), func(gid uint32) bool { return !hasGroup(gid) })
}

func hasNamespace(s *specs.Spec, kind specs.LinuxNamespaceType) bool {
	return slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
}

// bindOf returns a recursive bind mount of a directory of the host in place of a mount, with its options. If it is read-only, so are
// the mounts below it: the user may write to some of them (fusectl).
func bindOf(m specs.Mount, source string) specs.Mount {
	options := append([]string{"rbind", "rprivate"}, m.Options...)
	for i, o := range options {
		if o == "ro" {
			options[i] = "rro"
		}
	}
	return specs.Mount{Destination: m.Destination, Type: "bind", Source: source, Options: options}
}
