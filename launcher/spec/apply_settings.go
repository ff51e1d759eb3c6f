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

// Container merges the settings with an image's configuration. The caller sets the fields that depend
// on the root file system and the task's directory: user, root, cgroup, files and mounts.
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

// mergeCommand follows docker: a command replaces the image's Cmd and keeps its Entrypoint; an
// entrypoint replaces both.
func (s Settings) mergeCommand(c image.Config) []string {
	if s.Entrypoint != nil {
		return slices.Concat(s.Entrypoint, s.Command)
	}
	if len(s.Command) > 0 {
		return slices.Concat(c.Entrypoint, s.Command)
	}
	return slices.Concat(c.Entrypoint, c.Cmd)
}

// initPath is the path of the program of Settings.Init in a container. /dev is a tmpfs, so no file is
// created in the image.
const initPath = "/dev/init"

// initPathInRoot is used if a mount covers initPath: the runtime would create the file in the source of
// that mount, which may be the host's /dev. It is in the writable layer of the root.
const initPathInRoot = "/.init"

// AddInit makes an init program the container's first process. program must be the task's own copy,
// because a container that may remount could write to it.
func (s Settings) AddInit(b *Container, program string) error {
	at := initPath
	if IsCovered(b.Mounts, at) {
		at = initPathInRoot
		if s.ReadWrite {
			return fmt.Errorf("--init: the init program can be mounted neither in /dev, which a mount covers, nor in the root, which is the image itself (--rw); leave out one of them")
		}
	}
	b.Args = append([]string{at, "--"}, b.Args...)
	b.Mounts = append(slices.Clone(b.Mounts), specs.Mount{
		Destination: at, Type: "bind", Source: program,
		Options: []string{"bind", "rprivate", "ro", "nosuid", "nodev"},
	})
	return nil
}
