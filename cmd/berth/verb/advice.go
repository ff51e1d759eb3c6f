package verb

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/image/registry"
	"github.com/berth-gpu/berth/launcher/overlay"
	"github.com/berth-gpu/berth/launcher/rootfs"
	"github.com/berth-gpu/berth/launcher/tasks"
)

func adviceFor(err error) string {
	var busy *ledger.BusyError
	var held *lock.HeldError
	var missing *rootfs.MissingInterpreter
	var full DiskFull
	switch {
	case errors.As(err, &full):
		return full.advice()
	case NeedHost() != nil && !IsHelped() && (errors.Is(err, ledger.ErrOwnership) || errors.Is(err, fs.ErrPermission)):
		return "; " + NeedHost().Error() // root of the host has another uid here
	case errors.As(err, &missing):
		return "; " + interpreterAdvice(path.Base(missing.Interpreter))
	case errors.As(err, &busy) && busy.Waited > 0, errors.Is(err, engine.ErrWaited):
		return "; see berth leases"
	case errors.Is(err, match.ErrBusy):
		return "; wait for them with --wait, or see berth leases"
	case errors.Is(err, match.ErrLost):
		return "; see berth gpus, and the kernel's log for the reason"
	case errors.Is(err, match.ErrUnknown), errors.Is(err, match.ErrTooMany):
		return "; berth gpus lists the node's devices"
	case errors.As(err, &held) && !errors.Is(err, lock.ErrForeign):
		return "; berth repair --break-lock ends a stopped process of berth's"
	case errors.Is(err, ledger.ErrCorrupt), errors.Is(err, berth.ErrLedgerLost):
		return "; berth repair rebuilds it from the running holders"
	case errors.Is(err, ledger.ErrOwnership):
		return "; berth repair takes its ownership back and rebuilds it from the running holders"
	case errors.Is(err, ledger.ErrFuture):
		return "; install that version or a newer one"
	case errors.Is(err, ledger.ErrNotFound):
		return "; berth leases lists all leases"
	case errors.Is(err, berth.ErrNoDriver):
		return "; load the NVIDIA driver, or set host.driver_root in " + berth.ConfigPath
	case errors.Is(err, launcher.ErrNoRuntime):
		return "; install crun or runc, or set runtime in " + berth.ConfigPath
	case errors.Is(err, overlay.ErrUpper) && IsHelped():
		return "; set XDG_DATA_HOME to a directory on ext4, xfs, btrfs or tmpfs"
	case errors.Is(err, overlay.ErrUpper):
		return "; set data in " + berth.ConfigPath + " to a directory on ext4, xfs, btrfs or tmpfs"
	case errors.Is(err, image.ErrNoImage):
		return "; berth pull NAME pulls an image, and berth images lists pulled images"
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return "; this needs root: use sudo"
	case (errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOSYS)) && hasSystemCallFilter():
		return "; the system call filter (seccomp) of this process may forbid it"
	case errors.Is(err, unix.ENOSYS):
		return "; berth needs Linux 5.12 or newer"
	}
	return imageAdvice(err)
}

// hasSystemCallFilter reports whether this process was started under a seccomp filter.
func hasSystemCallFilter() bool {
	const filters = 2 // SECCOMP_MODE_FILTER
	mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	return err == nil && mode == filters
}

// imageAdvice returns the advice for an error of a pull or of the image store, "" if there is none.
func imageAdvice(err error) string {
	switch {
	case errors.Is(err, registry.ErrDenied):
		return "; check the name, or log in with berth login REGISTRY"
	case errors.Is(err, registry.ErrNotFound):
		return "; check the name and the tag"
	case errors.Is(err, registry.ErrPlain):
		return "; its directory in /etc/containerd/certs.d can allow plain HTTP, with server = \"http://…\" in hosts.toml"
	case errors.Is(err, registry.ErrCertificate):
		return "; put its CA certificate into /etc/containerd/certs.d/REGISTRY/ca.crt"
	case errors.Is(err, registry.ErrUnknownHost):
		return "; check the name, DNS and, behind a proxy, HTTPS_PROXY"
	case errors.Is(err, registry.ErrUnreachable):
		return "; check its address and port, and that it runs"
	case errors.Is(err, image.ErrNotHere):
		return "; berth pull pulls it, and berth images lists pulled images"
	case errors.Is(err, image.ErrPlatform) && strings.Contains(err.Error(), "image is for linux/"+runtime.GOARCH+","):
		return "; it is an image for this machine: leave out --platform"
	case errors.Is(err, image.ErrPlatform):
		return "; docker build --platform linux/" + runtime.GOARCH + " makes one for this machine, and --platform takes another one that there is"
	case errors.Is(err, image.ErrUsed):
		return "; berth ps -a shows the tasks, and --force removes the name alone"
	case errors.Is(err, image.ErrNames):
		return "; give one of them, or remove all with --force"
	case IsDiskFull(err):
		return DiskFull{}.advice()
	}
	return taskAdvice(err)
}

// interpreterAdvice returns the advice for a command whose interpreter or loader is missing.
func interpreterAdvice(name string) string {
	switch {
	case strings.HasPrefix(name, "ld-linux"), strings.HasPrefix(name, "ld64.so"):
		return "use an image with glibc, such as one of Debian or Ubuntu"
	case strings.HasPrefix(name, "ld-musl"):
		return "use an image with musl, such as one of Alpine"
	}
	return "use an image that has it, or mount it with -v"
}

// taskAdvice returns the advice for an error of a task, "" if there is none.
func taskAdvice(err error) string {
	var broken *tasks.BrokenError
	switch {
	case errors.As(err, &broken) && broken.IsDamaged():
		return "; berth rm -f " + broken.ID + " removes it"
	case errors.Is(err, tasks.ErrNotFound):
		return "; berth ps -a lists all"
	case errors.Is(err, control.ErrRuns):
		return "; berth stop ends it, or --force kills it"
	case errors.Is(err, control.ErrCodeUnknown):
		return ""
	}
	return ""
}

// DiskFull is the error of a full disk with the task that has written the most.
type DiskFull struct {
	Err     error
	Largest string // "" if no task has written much
}

func (e DiskFull) Error() string { return e.Err.Error() }

func (e DiskFull) Unwrap() error { return e.Err }

// advice returns the end of the error's line.
func (e DiskFull) advice() string {
	if e.Largest == "" {
		return "; berth prune --all frees what no task uses"
	}
	return "; berth prune --all frees what no task uses, and " + e.Largest + ": see berth system df -v"
}

// IsDiskFull reports whether an error is that of a full disk. It also recognises the text,
// for errors of other processes.
func IsDiskFull(err error) bool {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return true
	}
	return err != nil && (strings.Contains(err.Error(), unix.ENOSPC.Error()) || strings.Contains(err.Error(), unix.EDQUOT.Error()))
}
