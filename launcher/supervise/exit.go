package supervise

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/launcher/rootfs"
)

// Exit codes of what isn't the command's own end, as shells and engines have them.
const (
	CodeUnknown    = 255 // nobody saw how the task ended
	CodeFailed     = 125
	CodeCantInvoke = 126
	CodeNotFound   = 127
	CodeBusy       = 75 // EX_TEMPFAIL of sysexits.h
)

// CodeOfSignal returns the exit code of a process that a signal ended, as shells have it.
func CodeOfSignal(sig syscall.Signal) int { return 128 + int(sig) }

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

// OutOfMemory says that the kernel killed a process of the task because memory ran out, and
// that the task then ended with Code, which isn't 0.
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

// TimedOut says that the task was ended because its time was over, and that it ended with
// Code, which isn't 0.
type TimedOut struct {
	Code  int
	After time.Duration
}

func (e *TimedOut) Error() string { return Overtime(e.After) + " (--timeout)" }
