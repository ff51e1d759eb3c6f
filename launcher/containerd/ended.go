package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	tasktypes "github.com/containerd/containerd/api/types/task"
	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Ended sees to a task that has ended: how it did is written down, for containerd forgets
// it when it is started anew, and what isn't to be kept is removed. A task that containerd
// starts again is left to that. It may be called twice.
// code is that of its end; less than zero is the one that containerd knows.
func (e *Engine) Ended(ctx context.Context, id string, code int) error {
	ctx = within(context.WithoutCancel(ctx))
	lock, err := e.lock(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed by now
	}
	if err != nil {
		return err
	}
	defer lock.Close() // nothing was written
	p, err := e.stopped(ctx, id)
	if err != nil || p == nil {
		return err
	}
	t, err := e.Task(ctx, id)
	if err == nil && t.State == tasks.Restarting && t.Life.Ended != nil {
		return e.again(t)
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
		return e.erase(ctx, t)
	}
	if err := e.store.WriteExit(id, x); err != nil {
		return err
	}
	container, task, err := e.loaded(ctx, t)
	if err == nil { // containerd 1.6 knows of no policy: it would start all of them again
		err = e.relabel(ctx, container, stopped(t))
	}
	if err == nil {
		_, err = task.Delete(ctx)
	}
	if errdefs.IsNotFound(err) {
		return nil
	}
	return plain(err)
}

// again notes that one more life begins, once for each end.
func (e *Engine) again(t tasks.Task) error {
	n, decided := e.lives(t.ID, *t.Life.Ended)
	if decided {
		return nil
	}
	return e.store.WriteLife(t.ID, tasks.Life{Restarts: n + 1, BootID: t.Life.BootID, Ended: t.Life.Ended})
}

// settle is how long a task's end takes to become known.
const settle = 10 * time.Second

// stopped waits until containerd knows of the task's end; nil says that it has none.
func (e *Engine) stopped(ctx context.Context, id string) (*tasktypes.Process, error) {
	for last := time.Now().Add(settle); ; time.Sleep(5 * time.Millisecond) {
		p, err := e.process(ctx, id)
		if err != nil || p == nil || p.Status == tasktypes.Status_STOPPED {
			return p, err
		}
		if time.Now().After(last) {
			return nil, nil // it runs again
		}
	}
}

// lock takes the lock of a task's directory, for which somebody else may be at work.
func (e *Engine) lock(id string) (*os.File, error) {
	for last := time.Now().Add(settle); ; time.Sleep(5 * time.Millisecond) {
		f, err := e.store.Lock(id)
		if !errors.Is(err, lock.ErrBusy) || time.Now().After(last) {
			return f, err
		}
	}
}

// erase removes a task that has ended with all that is kept of it.
func (e *Engine) erase(ctx context.Context, t tasks.Task) error {
	container, task, err := e.loaded(ctx, t)
	switch {
	case errors.Is(err, tasks.ErrNotFound):
		return e.forget(t.ID)
	case container == nil:
		return err
	}
	if task == nil && t.Exit == nil {
		e.outlive(ctx, t.ID)
	}
	if task != nil {
		if _, err := task.Delete(ctx, client.WithProcessKill); err != nil && !errdefs.IsNotFound(err) {
			return plain(err)
		}
	}
	var opts []client.DeleteOpts
	if info, err := container.Info(ctx); err == nil && info.SnapshotKey != "" {
		opts = append(opts, client.WithSnapshotCleanup)
	}
	if err := container.Delete(ctx, opts...); err != nil && !errdefs.IsNotFound(err) {
		return plain(err)
	}
	return e.forget(t.ID)
}

// runcRoot is where shims of a namespace have the runtime keep its containers.
const runcRoot = "/run/containerd/runc/" + Namespace

// clear ends a container that containerd doesn't know, because its client was killed while
// it was being made: the runtime still does. Its lease is given back with it.
func (e *Engine) clear(ctx context.Context, id string) error {
	if _, err := os.Lstat(filepath.Join(runcRoot, id)); err != nil {
		return nil //nolint:nilerr // as it nearly always is
	}
	cmd := exec.CommandContext(ctx, e.Runtime, "--root", runcRoot, "delete", "--force", id)
	cmd.Env, cmd.Dir = []string{"PATH=" + ociruntime.Programs}, "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("delete container %s: %w: %s", id, err, strings.Join(strings.Fields(string(out)), " "))
	}
	return nil
}

// outlive waits for a runtime that was still making a container when its shim was ended.
func (e *Engine) outlive(ctx context.Context, id string) {
	for last := time.Now().Add(making); time.Now().Before(last); time.Sleep(making / 10) {
		if _, err := os.Lstat(filepath.Join(runcRoot, id)); err == nil && e.clear(ctx, id) == nil {
			return
		}
	}
}

// making is how long a runtime needs to make a container.
const making = time.Second
