package userns

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// ErrNoRights means that root of a user namespace is refused what it may otherwise do there.
var ErrNoRights = errors.New("root of the user namespace has no rights in it")

// invalidCapability is the number of no capability.
const invalidCapability = 1 << 16

// CheckRights returns ErrNoRights if this process is root of a user namespace without its rights. Ubuntu's AppArmor lets every
// program make a user namespace, and refuses capabilities in it to programs without a profile that allows it; profiles of
// containers refuse mounts. It changes nothing.
func CheckRights() error {
	// The kernel looks for the right first (cap_prctl_drop in security/commoncap.c).
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, invalidCapability, 0, 0, 0); errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: capability: %w", ErrNoRights, err)
	}
	// Mounts of a new user namespace are slaves already. EPERM means that the mount namespace belongs to another user namespace.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE, ""); errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%w: mount: %w", ErrNoRights, err)
	}
	return nil
}

// Refusal is why an ordinary user's process can't make a user namespace or has no rights in one, and what root does about it.
type Refusal struct {
	Reason string `json:"reason"`
	Fix    string `json:"fix"`
}

// Switches of the kernel that forbid user namespaces to ordinary users. No kernel has all of them.
const (
	maxUserSwitch  = "user.max_user_namespaces"
	maxMountSwitch = "user.max_mnt_namespaces"
	cloneSwitch    = "kernel.unprivileged_userns_clone"             // Debian's kernels
	apparmorSwitch = "kernel.apparmor_restrict_unprivileged_userns" // Ubuntu's kernels, and those of others with its patches
)

// Files of berth's packages. The profile is for the installed program, and postinstall.sh links it where AppArmor 4 reads it.
const (
	installedProgram = "/usr/bin/berth"
	packagedProfile  = "/usr/share/berth/apparmor.d/berth"
	profile          = "/etc/apparmor.d/berth"
)

// Explain returns why a user namespace could not be made, or not be used. err is the error of a command after [Enter], or of
// [CheckRights]. ok is false if err has another cause. proc is the directory where procfs is mounted, and program
// is the path of the program that has tried.
func Explain(proc, program string, err error) (r Refusal, ok bool) {
	h := host{proc, program, func(path string) bool { _, err := os.Lstat(path); return !errors.Is(err, fs.ErrNotExist) }}
	return h.explain(err)
}

// host is what Explain reads.
type host struct {
	proc, program string
	exists        func(path string) bool
}

func (h host) explain(err error) (r Refusal, ok bool) {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS):
		return h.explainLimit(), true
	case errors.Is(err, ErrNoRights), errors.Is(err, unix.EACCES):
		return cmp.Or(h.explainAppArmor(), h.explainModule(err)), true
	case errors.Is(err, unix.EPERM):
		return cmp.Or(h.explainClone(), h.explainAppArmor(), h.explainFilter(), h.explainModule(err)), true
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return Refusal{"this kernel has none", "boot a kernel with CONFIG_USER_NS"}, true
	}
	return Refusal{}, false
}

// read returns a sysctl's value, "" if there is no such switch.
func (h host) read(key string) string {
	value, err := smallfile.String(filepath.Join(h.proc, "sys", strings.ReplaceAll(key, ".", "/")))
	if err != nil {
		return ""
	}
	return value
}

// explainLimit returns which limit on numbers of namespaces is reached.
func (h host) explainLimit() Refusal {
	for _, key := range []string{maxUserSwitch, maxMountSwitch} {
		if h.read(key) == "0" {
			return Refusal{key + " is 0", "sysctl -w " + key + "=15000"}
		}
	}
	limit, _ := strconv.Atoi(h.read(maxUserSwitch)) // 0 if it can't be read
	return Refusal{
		fmt.Sprintf("as many are in use as %s allows, which is %d, or as one around this process does", maxUserSwitch, limit),
		fmt.Sprintf("sysctl -w %s=%d, or end processes that have one (lsns -t user lists them)", maxUserSwitch, max(2*limit, 15000)),
	}
}

// explainClone returns what forbids user namespaces to all programs of ordinary users.
func (h host) explainClone() Refusal {
	if h.read(cloneSwitch) == "0" {
		return Refusal{cloneSwitch + " is 0", "sysctl -w " + cloneSwitch + "=1"}
	}
	return Refusal{}
}

// Labels of AppArmor that are no profile of this process's program. Ubuntu's kernels move a program without a profile into the
// second one when it makes a user namespace.
const (
	unconfined   = "unconfined"
	noNamespaces = "unprivileged_userns"
)

// explainAppArmor returns which profile of AppArmor refuses a user namespace, or its rights.
func (h host) explainAppArmor() Refusal {
	current, _ := smallfile.String(filepath.Join(h.proc, "self/attr/current")) // missing without a security module
	label, enforced := strings.CutSuffix(current, " (enforce)")
	switch {
	case enforced && label != noNamespaces:
		return Refusal{
			"AppArmor's profile " + label + " around this process forbids them",
			"call berth outside of that container or service, or have the profile allow userns, capability and mount",
		}
	case h.read(apparmorSwitch) == "1" && (current == "" || current == unconfined || label == noNamespaces):
		return Refusal{apparmorSwitch + " is 1, and no AppArmor profile allows them to " + h.program, h.fixAppArmor()}
	}
	return Refusal{}
}

// fixAppArmor returns how berth gets a profile that allows user namespaces.
func (h host) fixAppArmor() string {
	switch {
	case h.program != installedProgram || !h.exists(packagedProfile):
		return "install berth's package, which has a profile for " + installedProgram + ", or sysctl -w " + apparmorSwitch + "=0"
	case !h.exists(profile):
		return "ln -s " + packagedProfile + " " + profile + " && apparmor_parser -r " + profile
	}
	return "apparmor_parser -r " + profile
}

// explainFilter returns whether a system call filter may forbid user namespaces.
func (h host) explainFilter() Refusal {
	const most = 1 << 16
	status, err := smallfile.Read(filepath.Join(h.proc, "self/status"), most)
	if err != nil || !strings.Contains(string(status), "\nSeccomp:\t2\n") {
		return Refusal{}
	}
	return Refusal{
		"a system call filter (seccomp) around this process forbids them, as those of container engines do",
		"call berth outside of that container or service, or have the filter allow clone and unshare with CLONE_NEWUSER",
	}
}

// explainModule returns a reason where no switch is known.
func (h host) explainModule(err error) Refusal {
	cause := err
	var number unix.Errno
	if errors.As(err, &number) {
		cause = number
	}
	return Refusal{
		fmt.Sprintf("the kernel refuses them to %s (%v), because of a security module or a chroot", h.program, cause),
		"have the module's policy allow " + h.program + " user namespaces (its log says what it refuses), or call berth outside of the chroot",
	}
}
