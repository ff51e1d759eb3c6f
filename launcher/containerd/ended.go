package containerd

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	tasktypes "github.com/containerd/containerd/api/types/task"
	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// HandleTaskEnd records the end of a task, because containerd forgets it at a restart, and removes the
// task if it isn't to be kept. A task that containerd will restart is left alone. It is idempotent.
// code is the exit code; less than zero means the one that containerd has.
func (e *Engine) HandleTaskEnd(ctx context.Context, id string, code int) error {
	ctx = withNamespace(context.WithoutCancel(ctx))
	lock, err := e.lockTask(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the task was removed
	}
	if err != nil {
		return err
	}
	defer lock.Close() // nothing was written
	p, err := e.waitStopped(ctx, id)
	if err != nil || p == nil {
		return err
	}
	t, err := e.Task(ctx, id)
	if err == nil && t.State == tasks.Restarting && t.Life.Ended != nil {
		return e.recordRestart(t)
	}
	if err != nil || t.Exit == nil {
		return err
	}
	x := *t.Exit
	if code >= 0 {
		x.Code = code
	}
	if x.Code > 128 && x.Code <= 128+64 {
		x.Signal = x.Code - 128
	}
	if tree, err := cgroup.Detect(e.Config.Host.Cgroup); err == nil {
		x.OOM = tree.HasOOMKill(t.Cgroup + "/container")
	}
	if t.Remove {
		return e.eraseTask(ctx, t)
	}
	if err := e.store.WriteExit(id, x); err != nil {
		return err
	}
	container, task, err := e.loadTask(ctx, t)
	if err == nil { // containerd 1.6 ignores the policy: without stop labels it would restart the task
		err = e.setLabels(ctx, container, stopLabels(t))
	}
	if err == nil {
		_, err = task.Delete(ctx)
	}
	if errdefs.IsNotFound(err) {
		return nil
	}
	return simplifyError(err)
}

// recordRestart increments the task's restart count, once for each end.
func (e *Engine) recordRestart(t tasks.Task) error {
	n, decided := e.countRestarts(t.ID, *t.Life.Ended)
	if decided {
		return nil
	}
	return e.store.WriteLife(t.ID, tasks.Life{Restarts: n + 1, BootID: t.Life.BootID, Ended: t.Life.Ended})
}

// endTimeout is how long containerd may take to report a task's end.
const endTimeout = 10 * time.Second

// waitStopped waits until containerd reports the task as stopped. It returns nil if containerd has no
// such task, or if the task still runs after endTimeout.
func (e *Engine) waitStopped(ctx context.Context, id string) (*tasktypes.Process, error) {
	for last := time.Now().Add(endTimeout); ; time.Sleep(5 * time.Millisecond) {
		p, err := e.getProcess(ctx, id)
		if err != nil || p == nil || p.Status == tasktypes.Status_STOPPED {
			return p, err
		}
		if time.Now().After(last) {
			return nil, nil // it runs again
		}
	}
}

// lockTask locks a task's directory. It waits for up to endTimeout while another process holds it.
func (e *Engine) lockTask(id string) (*os.File, error) {
	for last := time.Now().Add(endTimeout); ; time.Sleep(5 * time.Millisecond) {
		f, err := e.store.Lock(id)
		if !errors.Is(err, lock.ErrBusy) || time.Now().After(last) {
			return f, err
		}
	}
}

// eraseTask removes an ended task from containerd, with its record and its cgroup.
func (e *Engine) eraseTask(ctx context.Context, t tasks.Task) error {
	container, task, err := e.loadTask(ctx, t)
	switch {
	case errors.Is(err, tasks.ErrNotFound):
		return e.removeTaskFiles(context.WithoutCancel(ctx), t.ID)
	case container == nil:
		return err
	}
	if task == nil && t.Exit == nil {
		e.awaitRuntimeCreate(ctx, t.ID)
	}
	if task != nil {
		if _, err := task.Delete(ctx, client.WithProcessKill); err != nil && !errdefs.IsNotFound(err) {
			return simplifyError(err)
		}
	}
	var opts []client.DeleteOpts
	if info, err := container.Info(ctx); err == nil && info.SnapshotKey != "" {
		opts = append(opts, client.WithSnapshotCleanup)
	}
	if err := container.Delete(ctx, opts...); err != nil && !errdefs.IsNotFound(err) {
		return simplifyError(err)
	}
	return e.removeTaskFiles(context.WithoutCancel(ctx), t.ID)
}

// runcRoot is the runtime's state directory for containers of Namespace.
const runcRoot = "/run/containerd/runc/" + Namespace

// runtime returns the runtime of the shims. It may know a container that containerd doesn't know, whose
// client was killed during its creation. Deleting the container releases the lease.
func (e *Engine) runtime() ociruntime.Runtime {
	return ociruntime.Runtime{Path: e.Runtime, Root: runcRoot}
}

// awaitRuntimeCreate waits for a runtime that was still creating a container when its shim was killed,
// and deletes that container.
func (e *Engine) awaitRuntimeCreate(ctx context.Context, id string) {
	for last := time.Now().Add(createTimeout); time.Now().Before(last); time.Sleep(createTimeout / 10) {
		if e.runtime().Knows(id) && e.runtime().Delete(ctx, id) == nil {
			return
		}
	}
}

// createTimeout is how long a runtime may need to create a container.
const createTimeout = time.Second
