package enter

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/userns"
)

// rootsCapabilities are those that a program of root keeps: Docker's default ones without CAP_MKNOD. Source: moby/moby
// oci/caps/defaults.go.
func rootsCapabilities() []uintptr {
	return []uintptr{
		unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FSETID, unix.CAP_FOWNER, unix.CAP_NET_RAW, unix.CAP_SETGID, unix.CAP_SETUID,
		unix.CAP_SETFCAP, unix.CAP_SETPCAP, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_CHROOT, unix.CAP_KILL, unix.CAP_AUDIT_WRITE,
	}
}

// DropPrivileges makes the next program of this thread, and programs that it starts, ones without rights that its user hasn't. Root of the machine keeps some, and root of a
// user namespace all that it has there if asRoot is set.
func DropPrivileges(asRoot bool) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges: %w", err)
	}
	if asRoot && userns.IsInside() {
		return nil
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&head, &have[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	var keep []uintptr
	if os.Geteuid() == 0 {
		keep = rootsCapabilities()
	}
	// A process without capabilities can't change its bounding set, and needs not: its programs gain none, because of no_new_privs.
	hasSome := have[0].Permitted|have[1].Permitted != 0
	for c := uintptr(0); hasSome && c <= unix.CAP_LAST_CAP; c++ {
		if slices.Contains(keep, c) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) { // an older kernel has fewer
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop ambient capabilities: %w", err)
	}
	for i := range have {
		have[i].Inheritable = 0
	}
	if err := unix.Capset(&head, &have[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}
