package launcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// ErrCodeUnknown: the task has ended, and nobody kept its exit code.
var ErrCodeUnknown = errors.New("its exit code isn't known")

// Wait waits for a task's end and returns its exit code. Of a task that keeps nothing,
// the code is that of the process that waited for it, which kernels before 6.15 don't
// tell: then the error Is ErrCodeUnknown.
func Wait(ctx context.Context, store tasks.Store, t tasks.Task) (int, error) {
	name, k := t.Name, keeper{store: store, pidfd: -1}
	defer k.close()
	for {
		now, err := watched(ctx, store, t.ID)
		if errors.Is(err, ErrNotRunning) {
			return k.code(name)
		}
		if err != nil {
			return 255, err
		}
		switch t = now; {
		case t.Exit != nil && t.Exit.Unknown:
			return t.Exit.Code, fmt.Errorf("task %s: %w: %s", name, ErrCodeUnknown, t.Exit.Error)
		case t.Exit != nil:
			return t.Exit.Code, nil
		}
		if k.find(t) {
			if err := awaitEnd(ctx, k.pidfd); err != nil {
				return 255, err
			}
		} else if t.State == tasks.Lost {
			return 255, fmt.Errorf("task %s: %w: %s", name, ErrCodeUnknown, t.Why)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return 255, err
		}
	}
}

// keeper is the process that ends when all of a task has: its monitor, or its launcher.
type keeper struct {
	store tasks.Store
	tasks.Process
	pidfd int
}

// find holds on to the task's keeper, if it lives.
func (k *keeper) find(t tasks.Task) bool {
	p := t.Maker
	if t.Life != nil && t.Life.Monitor.PID > 0 {
		p = t.Life.Monitor
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return false
	}
	if !k.store.Lives(p) {
		_ = unix.Close(fd) // nothing was written
		return false
	}
	k.close()
	k.Process, k.pidfd = p, fd
	return true
}

func (k *keeper) close() {
	if k.pidfd >= 0 {
		_ = unix.Close(k.pidfd) // nothing was written
	}
}

// code is that with which the keeper has ended, which is the task's.
func (k *keeper) code(name string) (int, error) {
	if k.pidfd >= 0 {
		status, err := process.Wait(or(k.store.Proc, "/proc"), k.pidfd, k.PID)
		switch {
		case err == nil && status.Exited():
			return status.ExitStatus(), nil
		case err != nil && !errors.Is(err, process.ErrUnknownExit):
			return 255, err
		}
	}
	return 255, fmt.Errorf("task %s: %w: it has ended, and was removed", name, ErrCodeUnknown)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// awaitEnd waits for the end of a process.
func awaitEnd(ctx context.Context, pidfd int) error {
	for {
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
}
