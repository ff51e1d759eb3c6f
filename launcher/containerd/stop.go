package containerd

import (
	"cmp"
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
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// killTimeout is how long a killed task may take to end.
const killTimeout = 30 * time.Second

// Signal sends a signal to a task's first process, as control.Signal does.
func (e *Engine) Signal(ctx context.Context, t tasks.Task, sig syscall.Signal) error {
	ctx = withNamespace(ctx)
	if t.State != tasks.Running {
		return fmt.Errorf("task %s: %w: %s", t.Name, control.ErrNotRunning, t.Status)
	}
	container, task, err := e.loadTask(ctx, t)
	if err != nil {
		return err
	}
	if sig == unix.SIGKILL || sig == supervise.TermsOf(t.Record, 0).Signal() {
		if err := e.setLabels(ctx, container, stopLabels(t)); err != nil {
			return err
		}
	}
	var ended <-chan client.ExitStatus
	if sig == unix.SIGKILL {
		if ended, err = task.Wait(ctx); err != nil {
			return simplifyError(err)
		}
	}
	if err := task.Kill(ctx, sig); err != nil {
		if errdefs.IsNotFound(err) {
			err = control.ErrNotRunning
		}
		return fmt.Errorf("task %s: %w", t.Name, simplifyError(err))
	}
	if sig != unix.SIGKILL {
		return nil
	}
	tree, err := cgroup.Detect(e.Config.Host.Cgroup)
	if err != nil || tree.Version == cgroup.V2 {
		return err // the kernel ends frozen processes
	}
	return e.awaitThawed(ctx, t, tree, ended)
}

// awaitThawed thaws the cgroups of a killed task until the task has ended: it can freeze itself again.
func (e *Engine) awaitThawed(ctx context.Context, t tasks.Task, tree cgroup.Hierarchy, ended <-chan client.ExitStatus) error {
	for last := time.Now().Add(killTimeout); time.Now().Before(last); {
		tree.Thaw(t.Cgroup)
		if done, err := waitExit(ctx, ended, supervise.ThawInterval); done || err != nil {
			return err
		}
	}
	err := fmt.Errorf("task %s: it was killed and hasn't ended after %v", t.Name, killTimeout)
	if pids, failed := tree.PIDs(t.Cgroup); failed == nil {
		if traced := process.DescribeTracer(e.procPath(), pids); traced != "" {
			err = fmt.Errorf("%w: %s", err, traced)
		}
	}
	return err
}

// stopLabels returns the labels that tell containerd's restart monitor not to restart the task.
func stopLabels(t tasks.Task) map[string]string {
	if t.Restart.Policy == "" {
		return nil
	}
	return map[string]string{restartStopped: "true", restartStatus: "stopped"}
}

// loadTask returns a task's container and its containerd task. The container is returned even if there
// is no task (ErrNotRunning).
func (e *Engine) loadTask(ctx context.Context, t tasks.Task) (client.Container, client.Task, error) {
	container, err := e.c.LoadContainer(ctx, t.ID)
	if errdefs.IsNotFound(err) {
		return nil, nil, fmt.Errorf("task %q: %w", t.Name, tasks.ErrNotFound)
	}
	if err != nil {
		return nil, nil, simplifyError(err)
	}
	task, err := container.Task(ctx, func(*cio.FIFOSet) (cio.IO, error) { return shimIO{}, nil })
	if errdefs.IsNotFound(err) {
		return container, nil, fmt.Errorf("task %s: %w any more", t.Name, control.ErrNotRunning)
	}
	return container, task, simplifyError(err)
}

// Stop ends a task for good, as control.Stop does.
func (e *Engine) Stop(ctx context.Context, t tasks.Task, grace time.Duration) error {
	if t.State == tasks.Exited {
		return nil
	}
	ctx = withNamespace(ctx)
	if grace < 0 {
		grace = supervise.TermsOf(t.Record, 0).GracePeriod()
	}
	container, task, err := e.loadTask(ctx, t)
	if container != nil {
		if e := e.setLabels(ctx, container, stopLabels(t)); e != nil {
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
		return simplifyError(err)
	}
	if grace != 0 && t.Life != nil && process.HandlesSignal(e.procPath(), t.Life.Init.PID, int(supervise.TermsOf(t.Record, 0).Signal())) {
		if err := task.Kill(ctx, supervise.TermsOf(t.Record, 0).Signal()); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("task %s: %w", t.Name, simplifyError(err))
		}
		if done, err := waitExit(ctx, ended, grace); done || err != nil {
			return err
		}
	}
	if err := task.Kill(ctx, unix.SIGKILL); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("task %s: %w", t.Name, simplifyError(err))
	}
	tree, err := cgroup.Detect(e.Config.Host.Cgroup)
	if err != nil {
		return err
	}
	return e.awaitThawed(ctx, t, tree, ended)
}

// waitExit waits for a task's end and returns whether it has ended. A negative timeout means for ever.
func waitExit(ctx context.Context, ended <-chan client.ExitStatus, timeout time.Duration) (bool, error) {
	var over <-chan time.Time
	if timeout >= 0 {
		over = time.After(timeout)
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

// pollInterval is how often Wait polls a task between two lives.
const pollInterval = 200 * time.Millisecond

// Wait waits for a task's end and returns its exit code, as control.Wait does.
func (e *Engine) Wait(ctx context.Context, t tasks.Task) (int, error) {
	ctx = withNamespace(ctx)
	last := -1
	for {
		switch {
		case t.State == tasks.Lost:
			return supervise.CodeUnknown, fmt.Errorf("task %s: %w: %s", t.Name, control.ErrCodeUnknown, t.Why)
		case t.Exit != nil:
			return e.awaitRecordedExit(ctx, t).Code, nil
		}
		code, err := e.awaitLife(ctx, t)
		if err != nil && !errors.Is(err, control.ErrNotRunning) && !errors.Is(err, tasks.ErrNotFound) {
			return supervise.CodeUnknown, err
		}
		if err == nil {
			last = code
		}
		again, err := e.Task(ctx, t.ID)
		switch {
		case errors.Is(err, tasks.ErrNotFound) && last >= 0:
			return last, nil
		case errors.Is(err, tasks.ErrNotFound):
			return supervise.CodeUnknown, fmt.Errorf("task %s: %w: it has ended, and was removed", t.Name, control.ErrCodeUnknown)
		case err != nil:
			return supervise.CodeUnknown, err
		}
		t = again
		if t.Exit == nil {
			select {
			case <-ctx.Done():
				return supervise.CodeUnknown, context.Cause(ctx)
			case <-time.After(pollInterval):
			}
		}
	}
}

// awaitRecordedExit waits for the record of a detached task's end, which has the reason. containerd
// only knows the code.
func (e *Engine) awaitRecordedExit(ctx context.Context, t tasks.Task) tasks.Exit {
	for last := time.Now().Add(endTimeout); t.Detached && time.Now().Before(last) && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		if x, err := e.store.Exit(t.ID); err != nil || x != nil && x.Finished.Equal(t.Exit.Finished) {
			return *cmp.Or(x, t.Exit)
		}
		if _, err := e.store.Record(t.ID); err != nil {
			break // removed
		}
	}
	return *t.Exit
}

// awaitLife waits for the end of one life.
func (e *Engine) awaitLife(ctx context.Context, t tasks.Task) (int, error) {
	_, task, err := e.loadTask(ctx, t)
	if err != nil {
		return 0, err
	}
	ended, err := task.Wait(ctx)
	if err != nil {
		return 0, simplifyError(err)
	}
	select {
	case status := <-ended:
		code, _, err := status.Result()
		if err = simplifyError(err); errdefs.IsNotFound(err) { // removed, or restarted
			err = control.ErrNotRunning
		}
		return int(code), err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// Remove removes a task that has ended. With force, it first kills a task that runs. It also removes
// what a killed client has left.
func (e *Engine) Remove(ctx context.Context, t tasks.Task, force bool) error {
	ctx = withNamespace(ctx)
	ended := t.State == tasks.Exited || t.State == tasks.Lost
	if !ended && !force {
		return fmt.Errorf("task %s: %w (%s)", t.Name, control.ErrRuns, t.Status)
	}
	if !ended {
		if err := e.Stop(ctx, t, 0); err != nil {
			return err
		}
	}
	lock, err := e.lockTask(t.ID)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("task %s: %w", t.Name, err)
	}
	if err := e.eraseTask(ctx, t); err != nil {
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
