package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// dying is how long what was killed may take to be gone.
const dying = 30 * time.Second

// Signal sends a signal to a task's first process, as control.Signal does.
func (e *Engine) Signal(ctx context.Context, t tasks.Task, sig syscall.Signal) error {
	ctx = within(ctx)
	if t.State != tasks.Running {
		return fmt.Errorf("task %s: %w: %s", t.Name, control.ErrNotRunning, t.Status)
	}
	container, task, err := e.loaded(ctx, t)
	if err != nil {
		return err
	}
	if sig == unix.SIGKILL || sig == supervise.TermsOf(t.Record, 0).Signal() {
		if err := e.relabel(ctx, container, stopped(t)); err != nil {
			return err
		}
	}
	if err := task.Kill(ctx, sig); err != nil {
		if errdefs.IsNotFound(err) {
			err = control.ErrNotRunning
		}
		return fmt.Errorf("task %s: %w", t.Name, plain(err))
	}
	return nil
}

// stopped tells containerd's restart monitor that people have ended the task.
func stopped(t tasks.Task) map[string]string {
	if t.Restart.Policy == "" {
		return nil
	}
	return map[string]string{restartStopped: "true", restartStatus: "stopped"}
}

// loaded finds a task's container, and what runs of it.
func (e *Engine) loaded(ctx context.Context, t tasks.Task) (client.Container, client.Task, error) {
	container, err := e.c.LoadContainer(ctx, t.ID)
	if errdefs.IsNotFound(err) {
		return nil, nil, fmt.Errorf("task %q: %w", t.Name, tasks.ErrNotFound)
	}
	if err != nil {
		return nil, nil, plain(err)
	}
	task, err := container.Task(ctx, func(*cio.FIFOSet) (cio.IO, error) { return logged{}, nil })
	if errdefs.IsNotFound(err) {
		return container, nil, fmt.Errorf("task %s: %w any more", t.Name, control.ErrNotRunning)
	}
	return container, task, plain(err)
}

// Stop ends a task for good, as control.Stop does.
func (e *Engine) Stop(ctx context.Context, t tasks.Task, grace time.Duration) error {
	if t.State == tasks.Exited || t.State == tasks.Lost {
		return nil
	}
	ctx = within(ctx)
	if grace < 0 {
		grace = supervise.TermsOf(t.Record, 0).GracePeriod()
	}
	container, task, err := e.loaded(ctx, t)
	if container != nil {
		if e := e.relabel(ctx, container, stopped(t)); e != nil {
			return e
		}
	}
	if errors.Is(err, control.ErrNotRunning) || errors.Is(err, tasks.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	ended, err := task.Wait(ctx)
	if err != nil {
		return plain(err)
	}
	if grace != 0 && t.Life != nil && process.Heeds(e.proc(), t.Life.Init.PID, int(supervise.TermsOf(t.Record, 0).Signal())) {
		if err := task.Kill(ctx, supervise.TermsOf(t.Record, 0).Signal()); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("task %s: %w", t.Name, plain(err))
		}
		if done, err := await(ctx, ended, grace); done || err != nil {
			return err
		}
	}
	if err := task.Kill(ctx, unix.SIGKILL); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("task %s: %w", t.Name, plain(err))
	}
	if done, err := await(ctx, ended, dying); done || err != nil {
		return err
	}
	return fmt.Errorf("task %s: it was killed and isn't gone after %v", t.Name, dying)
}

// await waits for a task's end; less than zero is for ever.
func await(ctx context.Context, ended <-chan client.ExitStatus, most time.Duration) (bool, error) {
	var over <-chan time.Time
	if most >= 0 {
		over = time.After(most)
	}
	select {
	case <-ended:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-over:
		return false, nil
	}
}

// look is how often a task is looked at that is waited for between two lives.
const look = 200 * time.Millisecond

// Wait waits for a task's end and returns its exit code, as control.Wait does.
func (e *Engine) Wait(ctx context.Context, t tasks.Task) (int, error) {
	ctx = within(ctx)
	last := -1
	for {
		switch {
		case t.State == tasks.Lost:
			return 255, fmt.Errorf("task %s: %w: %s", t.Name, control.ErrCodeUnknown, t.Why)
		case t.Exit != nil:
			return e.recorded(ctx, t).Code, nil
		}
		code, err := e.awaitLife(ctx, t)
		if err != nil && !errors.Is(err, control.ErrNotRunning) && !errors.Is(err, tasks.ErrNotFound) {
			return 255, err
		}
		if err == nil {
			last = code
		}
		again, err := e.Task(ctx, t.ID)
		switch {
		case errors.Is(err, tasks.ErrNotFound) && last >= 0:
			return last, nil
		case errors.Is(err, tasks.ErrNotFound):
			return 255, fmt.Errorf("task %s: %w: it has ended, and was removed", t.Name, control.ErrCodeUnknown)
		case err != nil:
			return 255, err
		}
		t = again
		if t.Exit == nil {
			select {
			case <-ctx.Done():
				return 255, context.Cause(ctx)
			case <-time.After(look):
			}
		}
	}
}

// recorded is how a task ended as it is written down a moment later: containerd knows
// what ended it, and the record why.
func (e *Engine) recorded(ctx context.Context, t tasks.Task) tasks.Exit {
	for last := time.Now().Add(settle); t.Detached && time.Now().Before(last) && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		if x, err := e.store.Exit(t.ID); err != nil || x != nil && x.Finished.Equal(t.Exit.Finished) {
			return *orExit(x, t.Exit)
		}
		if _, err := e.store.Record(t.ID); err != nil {
			break // removed
		}
	}
	return *t.Exit
}

func orExit(a, b *tasks.Exit) *tasks.Exit {
	if a == nil {
		return b
	}
	return a
}

// awaitLife waits for the end of one life.
func (e *Engine) awaitLife(ctx context.Context, t tasks.Task) (int, error) {
	_, task, err := e.loaded(ctx, t)
	if err != nil {
		return 0, err
	}
	ended, err := task.Wait(ctx)
	if err != nil {
		return 0, plain(err)
	}
	select {
	case status := <-ended:
		code, _, err := status.Result()
		if err = plain(err); errdefs.IsNotFound(err) { // it was removed, or is started again
			err = control.ErrNotRunning
		}
		return int(code), err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// Remove removes what is kept of a task that has ended; with force, one that runs is
// killed first. What was left by a client that was killed goes too.
func (e *Engine) Remove(ctx context.Context, t tasks.Task, force bool) error {
	ctx = within(ctx)
	ended := t.State == tasks.Exited || t.State == tasks.Lost
	if !ended && !force {
		return fmt.Errorf("task %s: %w (%s)", t.Name, control.ErrRuns, t.Status)
	}
	if !ended {
		if err := e.Stop(ctx, t, 0); err != nil {
			return err
		}
	}
	lock, err := e.lock(t.ID)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("task %s: %w", t.Name, err)
	}
	if err := e.erase(ctx, t); err != nil {
		err = fmt.Errorf("task %s: %w", t.Name, err)
		if lock != nil {
			err = errors.Join(err, lock.Close())
		}
		return err
	}
	if lock == nil {
		return nil
	}
	return lock.Close()
}
