package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Wait waits for a task's end and returns its exit code. A task that keeps nothing leaves no
// record: its code is then that of the process that supervised it, which kernels before 6.15
// don't tell. The error Is ErrCodeUnknown if the task has ended and its code isn't known.
func Wait(ctx context.Context, store tasks.Store, t tasks.Task) (int, error) {
	name, s := t.Name, supervisor{store: store, pidfd: -1}
	defer s.close()
	for {
		now, err := currentTask(ctx, store, t.ID)
		if errors.Is(err, ErrNotRunning) {
			return s.exitCode(name)
		}
		if err != nil {
			return supervise.CodeUnknown, err
		}
		switch t = now; {
		case t.Exit != nil && t.Exit.Unknown:
			return t.Exit.Code, fmt.Errorf("task %s: %w: %s", name, ErrCodeUnknown, t.Exit.Error)
		case t.Exit != nil:
			return t.Exit.Code, nil
		}
		if s.open(t) {
			if err := awaitEnd(ctx, s.pidfd, time.Second); err != nil {
				return supervise.CodeUnknown, err
			}
			if err := checkSupervisor(store, t); err != nil {
				return supervise.CodeUnknown, err
			}
		} else if t.State == tasks.Lost {
			return supervise.CodeUnknown, fmt.Errorf("task %s: %w: %s", name, ErrCodeUnknown, t.Why)
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return supervise.CodeUnknown, err
		}
	}
}

// supervisor is the process that ends when all of a task has been given back: its monitor, or
// its launcher. Its exit code is the task's.
type supervisor struct {
	store tasks.Store
	tasks.Process
	pidfd int // -1 before open
}

// open keeps a handle of the task's supervisor of now. It is false if that has ended; the
// handle is then the one from before.
func (s *supervisor) open(t tasks.Task) bool {
	p := t.Maker
	if t.Life != nil && t.Life.Monitor.PID > 0 {
		p = t.Life.Monitor
	}
	fd, err := openProcess(s.store, p)
	if err != nil {
		return false
	}
	s.close()
	s.Process, s.pidfd = p, fd
	return true
}

func (s *supervisor) close() {
	if s.pidfd >= 0 {
		_ = unix.Close(s.pidfd) // only a handle
	}
}

// exitCode returns the code with which the supervisor of a task has ended that was removed.
func (s *supervisor) exitCode(name string) (int, error) {
	if s.pidfd >= 0 {
		status, err := process.Wait(or(s.store.Proc, "/proc"), s.pidfd, s.PID)
		switch {
		case err == nil && status.Exited():
			return status.ExitStatus(), nil
		case err != nil && !errors.Is(err, process.ErrUnknownExit):
			return supervise.CodeUnknown, err
		}
	}
	return supervise.CodeUnknown, fmt.Errorf("task %s: %w: it has ended, and was removed", name, ErrCodeUnknown)
}

// awaitEnd waits for the end of a process, for some time at most.
func awaitEnd(ctx context.Context, pidfd int, most time.Duration) error {
	for last := time.Now().Add(most); time.Now().Before(last); {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 100)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for a process: %w", err)
		case n > 0:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
	return nil
}
