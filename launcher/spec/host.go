package spec

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// ErrNotRoot means that this process lacks the rights of the machine's root, which device rules and
// mounts need.
var ErrNotRoot = errors.New("not root")

// Host has the rights of the launching process and the machine's cgroups.
type Host struct {
	// Capabilities is the permitted set as a bit mask.
	Capabilities uint64
	// NoFile and Memlock are the hard limits.
	NoFile, Memlock uint64
	// Cgroups is the hierarchy of the machine.
	Cgroups cgroup.Hierarchy
	// UserNamespace means that this process is root of a user namespace alone: see [RestrictToUserNamespace].
	UserNamespace bool
}

// ReadHost reads the rights of this process. cgroups is where the cgroup file systems are mounted; ""
// means /sys/fs/cgroup. The error Is ErrNotRoot for a process that can't set device rules: one of
// another user, or of root in a user namespace. With userNamespace, it is for any other than the latter.
func ReadHost(cgroups string, userNamespace bool) (Host, error) {
	h := Host{UserNamespace: userNamespace}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return h, fmt.Errorf("read own capabilities: %w", err)
	}
	uidMap, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return h, fmt.Errorf("read own user namespace: %w", err)
	}
	if h.Capabilities, err = process.Mask(string(status), "CapPrm"); err != nil {
		return h, fmt.Errorf("read own capabilities: %w", err)
	}
	if userNamespace {
		err = checkNamespaceRoot(h.Capabilities)
		h.Capabilities &^= 1 << unix.CAP_SYS_RESOURCE // the kernel ignores it there
	} else {
		err = checkRoot(os.Geteuid(), string(uidMap), h.Capabilities)
	}
	if err != nil {
		return h, err
	}
	if h.NoFile, err = readHardLimit(unix.RLIMIT_NOFILE); err != nil {
		return h, err
	}
	if h.Memlock, err = readHardLimit(unix.RLIMIT_MEMLOCK); err != nil {
		return h, err
	}
	h.Cgroups, err = cgroup.Detect(cgroups)
	return h, err
}

func checkRoot(uid int, uidMap string, caps uint64) error {
	switch {
	case !userns.IsInitial(uidMap):
		return fmt.Errorf("%w: this is a user namespace, whose root can't set device rules", ErrNotRoot)
	case uid != 0:
		return fmt.Errorf("%w: this is user %d", ErrNotRoot, uid)
	case caps&(1<<unix.CAP_SYS_ADMIN) == 0:
		return fmt.Errorf("%w: CAP_SYS_ADMIN is missing", ErrNotRoot)
	}
	return nil
}

func checkNamespaceRoot(caps uint64) error {
	if !userns.IsInside() || os.Geteuid() != 0 || caps&(1<<unix.CAP_SYS_ADMIN) == 0 {
		return fmt.Errorf("%w of a user namespace", ErrNotRoot)
	}
	return nil
}

func readHardLimit(resource int) (uint64, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(resource, &r); err != nil {
		return 0, fmt.Errorf("read limit: %w", err)
	}
	return r.Max, nil
}

// MayExceedLimits reports whether this process may raise hard resource limits.
func (h Host) MayExceedLimits() bool { return h.Capabilities&(1<<unix.CAP_SYS_RESOURCE) != 0 }

// RequireController returns an error if the machine lacks a cgroup controller. what is what needs the
// controller, such as "limit memory".
func (h Host) RequireController(controller, what string) error {
	have, err := h.Cgroups.Controllers()
	if err != nil {
		return err
	}
	if slices.Contains(have, controller) {
		return nil
	}
	if h.Cgroups.Top != "" {
		return fmt.Errorf("can't %s: the cgroup %s hands on no controller %q; a task with devices has a cgroup with all controllers", what, h.Cgroups.Top, controller)
	}
	return fmt.Errorf("can't %s: the machine has no cgroup controller %q, only %s", what, controller, strings.Join(have, ", "))
}
