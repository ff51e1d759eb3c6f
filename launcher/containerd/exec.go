package containerd

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"syscall"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

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
		return 0, causeOr(ctx, simplifyError(err))
	}
	task, err := container.Task(ctx, nil)
	if err != nil {
		return 0, causeOr(ctx, simplifyError(err))
	}
	shim, bundle, err := e.findShim(t.Life.Init.PID)
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
	return e.runProcess(ctx, p, shim, io, in.Detach, s)
}

// deleteTimeout is how long containerd may take to delete an ended command whose output was not read to its
// end. The shim waits several seconds for that end.
const deleteTimeout = 500 * time.Millisecond

// runProcess starts a command and waits for its end. shim is the pid of the container's shim.
func (e *Engine) runProcess(ctx context.Context, p client.Process, shim int, io *stdio, detach bool, s *supervise.Signals) (int, error) {
	unused := false // the command has never run, or is to be undone
	code, _, err := e.superviseProcess(ctx, supervised{
		Process: p, io: io, detached: detach,
		send: func(p *supervise.Process, sig syscall.Signal) bool {
			frozen, _ := p.SendToCommand(sig, e.Config.Host.Cgroup) // it may have ended
			return frozen
		},
		startError: func(err error) error {
			unused = true
			return ociruntime.BlameCommand(simplifyError(err))
		},
		killRuntime: func() {
			unused = true
			e.killRuntime(shim, p.ID())
		},
	}, s, supervise.Terms{})
	switch {
	case unused || io.incomplete:
		short, cancel := context.WithTimeout(ctx, deleteTimeout)
		defer cancel()
		if unused {
			_ = p.Kill(short, unix.SIGKILL) // it may have been started meanwhile
		}
		_, _ = p.Delete(short) // the shim goes on after the timeout
		p.IO().Cancel()
		return code, errors.Join(err, p.IO().Close())
	case err != nil:
		return 0, err
	case detach:
		if io.closeInput {
			_ = p.CloseIO(ctx, client.WithStdinCloser) // the process may have ended
		}
		return 0, nil
	}
	if _, err := p.Delete(ctx); err != nil && !errdefs.IsNotFound(err) {
		return 0, simplifyError(err)
	}
	return code, nil
}

// killRuntime kills the runtime by which a shim starts a command: the task may have stopped the process that
// joins the container, and the runtime then waits for it for ever.
func (e *Engine) killRuntime(shim int, command string) {
	for _, pid := range process.Children(e.procPath(), shim) {
		p, err := supervise.OpenProcess(e.procPath(), pid)
		if err != nil {
			continue // it has ended
		}
		// The name of the pid file has the command's id, which is random.
		line, err := process.ReadCommandLine(e.procPath(), pid)
		if err == nil && bytes.Contains(line, []byte(command)) {
			p.KillWithChildren()
		}
		p.Close()
	}
}

// findShim returns the container's shim, which is the parent of the container's first process, and the
// container's bundle, which is the shim's working directory.
func (e *Engine) findShim(init int) (shim int, bundle string, err error) {
	if shim, err = process.Parent(e.procPath(), init); err != nil {
		return 0, "", fmt.Errorf("%w any more", control.ErrNotRunning)
	}
	if bundle, err = process.ReadLink(e.procPath(), shim, "cwd"); err != nil {
		return 0, "", fmt.Errorf("find the container's bundle: %w", err)
	}
	return shim, bundle, nil
}
