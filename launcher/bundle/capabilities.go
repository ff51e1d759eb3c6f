package bundle

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/rootfs"
)

const capSysResource = unix.CAP_SYS_RESOURCE

// capabilities returns what a task's root may have: no more than Docker gives,
// without CAP_MKNOD, and no more than this process has itself.
func capabilities(permitted uint64) []string {
	var names []string
	for _, c := range []struct {
		bit  int
		name string
	}{
		{unix.CAP_AUDIT_WRITE, "CAP_AUDIT_WRITE"},
		{unix.CAP_CHOWN, "CAP_CHOWN"},
		{unix.CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE"},
		{unix.CAP_FOWNER, "CAP_FOWNER"},
		{unix.CAP_FSETID, "CAP_FSETID"},
		{unix.CAP_KILL, "CAP_KILL"},
		{unix.CAP_NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE"},
		{unix.CAP_NET_RAW, "CAP_NET_RAW"},
		{unix.CAP_SETFCAP, "CAP_SETFCAP"},
		{unix.CAP_SETGID, "CAP_SETGID"},
		{unix.CAP_SETPCAP, "CAP_SETPCAP"},
		{unix.CAP_SETUID, "CAP_SETUID"},
		{unix.CAP_SYS_CHROOT, "CAP_SYS_CHROOT"},
	} {
		if permitted&(1<<c.bit) != 0 {
			names = append(names, c.name)
		}
	}
	return names
}

// capabilitiesOf: who isn't root has none, but set-uid programs are still bounded.
func capabilitiesOf(u rootfs.User, names []string) *specs.LinuxCapabilities {
	c := &specs.LinuxCapabilities{Bounding: names}
	if u.UID == 0 {
		c.Permitted, c.Effective = slices.Clone(names), slices.Clone(names)
	}
	return c
}
