package containerd

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Exec runs a command in a task's container, and returns its exit code as control.Exec
// does.
func (e *Engine) Exec(ctx context.Context, t tasks.Task, in control.ExecOptions) (int, error) {
	s := supervise.TakeSignals()
	defer s.Stop()
	code, err := e.runExec(s.Context(withNamespace(ctx)), t, in, s)
	if err != nil {
		return supervise.ExitCode(err), fmt.Errorf("task %s: %w", t.Name, err)
	}
	return code, nil
}

func (e *Engine) runExec(ctx context.Context, t tasks.Task, in control.ExecOptions, s *supervise.Signals) (int, error) {
	if t.State != tasks.Running || t.Life == nil {
		return 0, fmt.Errorf("%w: %s", control.ErrNotRunning, t.Status)
	}
	container, err := e.c.LoadContainer(ctx, t.ID)
	if err != nil {
		return 0, simplifyError(err)
	}
	task, err := container.Task(ctx, nil)
	if err != nil {
		return 0, simplifyError(err)
	}
	bundle, err := e.findBundle(t.Life.Init.PID)
	if err != nil {
		return 0, err
	}
	described, err := in.Process(bundle, t.Life.Init.PID)
	if err != nil {
		return 0, err
	}
	io := &stdio{creator: discardTerminal}
	switch pipes := e.store.Path(t.ID, "io"); {
	case in.Detach && in.Terminal:
	case in.Detach:
		var remove func()
		if io, remove, err = newDetachedIO(pipes); err != nil {
			return 0, err
		}
		defer remove()
	default:
		if io, err = newForegroundIO(pipes, in.Terminal, execInput(in)); err != nil {
			return 0, err
		}
	}
	defer io.restoreTerminal()
	if err := s.Hold(); err != nil {
		return 0, err
	}
	ctx = context.WithoutCancel(ctx)
	p, err := task.Exec(ctx, "exec-"+rand.Text(), described, io.creator)
	if err != nil {
		return 0, simplifyError(err)
	}
	return e.runProcess(ctx, p, io, in.Detach, s)
}

// runProcess starts a command and waits for its end.
func (e *Engine) runProcess(ctx context.Context, p client.Process, io *stdio, detach bool, s *supervise.Signals) (int, error) {
	ended, err := p.Wait(ctx)
	if err != nil {
		return 0, simplifyError(err)
	}
	if err := p.Start(ctx); err != nil {
		_, _ = p.Delete(ctx) // the process has never run
		return 0, ociruntime.BlameCommand(simplifyError(err))
	}
	if io.closeInput {
		_ = p.CloseIO(ctx, client.WithStdinCloser) // the process may have ended
		return 0, nil
	}
	if detach {
		return 0, nil
	}
	io.attach(ctx, p)
	code, _, err := e.superviseProcess(ctx, supervised{p, ended, io, (*supervise.Process).Send}, s, supervise.Terms{})
	if err != nil {
		return 0, err
	}
	if _, err := p.Delete(ctx); err != nil && !errdefs.IsNotFound(err) {
		return 0, simplifyError(err)
	}
	return code, nil
}

// findBundle returns the container's bundle: the working directory of the shim, which is the parent of
// the container's first process.
func (e *Engine) findBundle(pid int) (string, error) {
	shim, err := process.Parent(e.procPath(), pid)
	if err != nil {
		return "", fmt.Errorf("%w any more", control.ErrNotRunning)
	}
	dir, err := os.Readlink(filepath.Join(e.procPath(), strconv.Itoa(shim), "cwd"))
	if err != nil {
		return "", fmt.Errorf("find the container's bundle: %w", err)
	}
	return dir, nil
}
