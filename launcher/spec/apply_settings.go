package spec

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/image"
)

// Container merges the settings with an image's configuration. The caller adds what the root
// file system and the task's directory decide: user, root, cgroup, files and mounts.
func (s Settings) Container(c image.Config, h Host, p Privileges) Container {
	b := Container{
		Args:         s.mergeCommand(c),
		Env:          slices.Concat(c.Env, s.Env),
		Dir:          cmp.Or(s.Dir, c.WorkingDir, "/"),
		Terminal:     s.Terminal,
		ReadOnly:     s.ReadOnly,
		HostNetwork:  s.Network == "host",
		HostIPC:      s.IPC == "host",
		HostUTS:      s.UTS == "host",
		Resources:    s.Resources,
		Host:         h,
		Capabilities: p.Capabilities, Filter: p.Filter(),
		NewPrivileges: s.NewPrivileges || s.Privileged, Exposed: s.Privileged,
		Annotations: s.Annotations, Sysctls: maps.Clone(s.Sysctls),
	}
	b.CgroupNamespace = s.CgroupNS == "private" || s.CgroupNS == "" && (h.Cgroups.Version == cgroup.V2 || p.NeedsOuterCgroup)
	if s.AppArmor != unconfined {
		b.AppArmor = s.AppArmor
	}
	if s.Domainname != "" { // Spec.Domainname of runtime-spec 1.1 isn't known to old runtimes
		if b.Sysctls == nil {
			b.Sysctls = map[string]string{}
		}
		b.Sysctls["kernel.domainname"] = s.Domainname
	}
	return b
}

// mergeCommand follows docker: a command replaces the image's Cmd and leaves its Entrypoint, and
// another entrypoint replaces both.
func (s Settings) mergeCommand(c image.Config) []string {
	if s.Entrypoint != nil {
		return slices.Concat(s.Entrypoint, s.Command)
	}
	if len(s.Command) > 0 {
		return slices.Concat(c.Entrypoint, s.Command)
	}
	return slices.Concat(c.Entrypoint, c.Cmd)
}

// initPath is where a container finds the program of Settings.Init: in a file system of its
// own, so that nothing is made in the image.
const initPath = "/dev/init"

// initPathInRoot is used if a mount covers initPath, because a runtime would make the file in
// what may be the host's /dev. It is made in the part of the root that is thrown away.
const initPathInRoot = "/.init"

// AddInit makes an init program the container's first process. program is a file of the
// task's own: a container that may remount could write to it.
func (s Settings) AddInit(b *Container, program string) error {
	at := initPath
	if IsCovered(b.Mounts, at) {
		at = initPathInRoot
		if s.ReadWrite {
			return fmt.Errorf("--init: its program has no place: something is mounted on /dev, and the image is written to (--rw); leave out one of them")
		}
	}
	b.Args = append([]string{at, "--"}, b.Args...)
	b.Mounts = append(slices.Clone(b.Mounts), specs.Mount{
		Destination: at, Type: "bind", Source: program,
		Options: []string{"bind", "rprivate", "ro", "nosuid", "nodev"},
	})
	return nil
}
