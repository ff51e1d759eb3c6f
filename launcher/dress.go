package launcher

import (
	"fmt"
	"maps"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/spec"
)

// dress puts the settings into what the spec is made from.
func (t *task) dress(b *spec.Task) {
	s := t.o.Settings
	b.Capabilities, b.Filter = &t.h.caps, t.h.filter()
	b.NewPrivileges, b.Exposed = s.NewPrivileges || s.Privileged, s.Privileged
	if s.AppArmor != unconfined {
		b.AppArmor = s.AppArmor
	}
	b.CgroupNamespace = s.CgroupNS == "private" || s.CgroupNS == "" && (t.h.tree.Version == cgroup.V2 || !t.h.usual(s.Security))
	b.HostIPC, b.HostUTS = s.IPC == "host", s.UTS == "host"
	b.Annotations, b.Sysctls = s.Annotations, maps.Clone(s.Sysctls)
	if s.Domainname != "" { // the specification has a word of its own, which is younger than the runtimes
		b.Sysctls = withEntry(b.Sysctls, "kernel.domainname", s.Domainname)
	}
	b.Rlimits, b.OOMScoreAdj = s.Ulimits, s.OOMScoreAdj
	b.Limits.MemorySwap, b.Limits.MemoryReservation, b.Limits.Pids = s.MemorySwap, s.MemoryReservation, s.Pids
	b.Limits.CPUShares, b.Limits.MemoryNodes = s.CPUShares, s.MemoryNodes
}

func withEntry(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

// args: what was given replaces the image's Cmd and leaves its Entrypoint, unless
// there is another, with which the image's Cmd has nothing to do.
func (o Options) args(c image.Config) []string {
	if o.Entrypoint != nil {
		return slices.Concat(o.Entrypoint, o.Command)
	}
	if len(o.Command) > 0 {
		return slices.Concat(c.Entrypoint, o.Command)
	}
	return slices.Concat(c.Entrypoint, c.Cmd)
}

// initPath is where a task finds its first process, if that is berth's: in a file
// system that is the task's own, so that nothing is made in the image.
const initPath = "/dev/init"

// initPathInRoot is where it is if something else is mounted there: a runtime would make
// the file in what may be the host's /dev. It is made in what the task throws away.
const initPathInRoot = "/.init"

// withInit has the task's command run by a small program of berth's.
func (t *task) withInit(b *spec.Task) error {
	if !t.o.Init {
		return nil
	}
	at := initPath
	if covered(b.Mounts, at) {
		at = initPathInRoot
		if t.o.ReadWrite {
			return fmt.Errorf("--init: its program has no place: something is mounted on /dev, and %s is written to; leave out one of them", t.o.Image)
		}
	}
	b.Args = append([]string{at, "--"}, b.Args...)
	b.Mounts = append(slices.Clone(b.Mounts), specs.Mount{
		Destination: at, Type: "bind", Source: t.o.InitProgram,
		Options: []string{"bind", "rprivate", "ro", "nosuid", "nodev"},
	})
	return nil
}
