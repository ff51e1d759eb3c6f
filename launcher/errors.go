package launcher

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/launcher/rootfs"
)

// Errors that callers branch on.
var (
	// ErrNotRoot: device rules and mounts need root of the machine.
	ErrNotRoot = errors.New("not root")
	// ErrNoRuntime: there is no OCI runtime to run a container with.
	ErrNoRuntime = errors.New("no OCI runtime")
	// ErrNotFound: the image has no such command.
	ErrNotFound = rootfs.ErrNotFound
	// ErrCantInvoke: the image has the command, and it can't be executed.
	ErrCantInvoke = rootfs.ErrCantInvoke
)

// MissingInterpreter: what the command has to be started with is missing. It Is
// ErrNotFound.
type MissingInterpreter = rootfs.MissingInterpreter

// Interrupted says that a signal came before the task ran.
type Interrupted struct{ Signal syscall.Signal }

func (e *Interrupted) Error() string {
	return fmt.Sprintf("interrupted (%s) before the task ran", e.Signal)
}

// OutOfMemory says that the kernel has killed a process of the task for want of memory, and
// that the task has ended with Code, which is no success.
type OutOfMemory struct {
	Code  int
	Limit int64 // in bytes; 0 without one of its own
}

func (e *OutOfMemory) Error() string {
	what := "a process of the task"
	if e.Code == 128+int(syscall.SIGKILL) {
		what = "the task"
	}
	limit := "the machine has no more"
	if e.Limit > 0 {
		limit = fmt.Sprintf("its limit is %d MiB (--memory)", e.Limit>>20)
	}
	return fmt.Sprintf("out of memory: the kernel has killed %s; %s", what, limit)
}

// TimedOut says that the task was ended because its time was over, and that it has ended
// with Code, which is no success.
type TimedOut struct {
	Code  int
	After time.Duration
}

func (e *TimedOut) Error() string { return overtime(e.After) + " (--timeout)" }

func overtime(limit time.Duration) string { return fmt.Sprintf("its time of %v was over", limit) }

// Exit codes of a launch that failed, as shells and engines have them.
const (
	codeFailed     = 125
	codeCantInvoke = 126
	codeNotFound   = 127
	codeBusy       = 75 // EX_TEMPFAIL of sysexits.h
)

func exitCode(err error) int {
	var i *Interrupted
	var oom *OutOfMemory
	var late *TimedOut
	switch {
	case errors.As(err, &oom):
		return oom.Code
	case errors.As(err, &late):
		return late.Code
	case errors.As(err, &i):
		return 128 + int(i.Signal)
	case errors.Is(err, ErrNotFound):
		return codeNotFound
	case errors.Is(err, ErrCantInvoke):
		return codeCantInvoke
	case errors.Is(err, gpu.ErrBusy):
		return codeBusy
	}
	return codeFailed
}
