package supervise

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/launcher/rootfs"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Exit codes of tasks whose command didn't end by itself. Shells and container engines use the same ones.
const (
	CodeBusy       = 75  // no devices are free, and the request didn't wait or waited in vain (EX_TEMPFAIL of sysexits.h)
	CodeFailed     = 125 // berth failed before the command started
	CodeCantInvoke = 126 // the command can't be executed
	CodeNotFound   = 127 // there is no such command
	CodeUnknown    = 255 // no process of berth has read the exit status
)

// CodeOfSignal returns the exit code of a process that a signal ended, as shells have it.
func CodeOfSignal(sig syscall.Signal) int { return 128 + int(sig) }

// NewFailedExit returns the end of a task whose launch failed with err: it ends now, and never ran.
func NewFailedExit(err error) tasks.Exit {
	now := time.Now().UTC()
	return tasks.Exit{Code: ExitCode(err), Error: err.Error(), Started: now, Finished: now}
}

// ExitCode returns the exit code of a launch that failed with an error.
func ExitCode(err error) int {
	var interrupted *Interrupted
	var oom *OutOfMemory
	var late *TimedOut
	switch {
	case errors.As(err, &oom):
		return oom.Code
	case errors.As(err, &late):
		return late.Code
	case errors.As(err, &interrupted):
		return CodeOfSignal(interrupted.Signal)
	case errors.Is(err, rootfs.ErrNotFound):
		return CodeNotFound
	case errors.Is(err, rootfs.ErrCantInvoke):
		return CodeCantInvoke
	case errors.Is(err, match.ErrBusy):
		return CodeBusy
	}
	return CodeFailed
}

// OutOfMemory means that the kernel has killed a process of the task for lack of memory, and that
// the task has ended with Code, which isn't 0.
type OutOfMemory struct {
	Code  int
	Limit int64 // in bytes; 0 for a task without a limit of its own
}

func (e *OutOfMemory) Error() string {
	what := "a process of the task"
	if e.Code == CodeOfSignal(unix.SIGKILL) {
		what = "the task"
	}
	limit := "the machine has no more"
	if e.Limit > 0 {
		limit = fmt.Sprintf("its limit is %d MiB (--memory)", e.Limit>>20)
	}
	return fmt.Sprintf("out of memory: the kernel has killed %s; %s", what, limit)
}

// TimedOut means that the task was stopped by its timeout and has ended with Code, which isn't 0.
type TimedOut struct {
	Code  int
	After time.Duration
}

func (e *TimedOut) Error() string { return TimeoutReason(e.After) + " (--timeout)" }
