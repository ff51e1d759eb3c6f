package containerd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

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
	code, err := e.exec(s.Context(within(ctx)), t, in, s)
	if err != nil {
		return supervise.ExitCode(err), fmt.Errorf("task %s: %w", t.Name, err)
	}
	return code, nil
}

func (e *Engine) exec(ctx context.Context, t tasks.Task, in control.ExecOptions, s *supervise.Signals) (int, error) {
	if t.State != tasks.Running || t.Life == nil {
		return 0, fmt.Errorf("%w: %s", control.ErrNotRunning, t.Status)
	}
	container, err := e.c.LoadContainer(ctx, t.ID)
	if err != nil {
		return 0, plain(err)
	}
	task, err := container.Task(ctx, nil)
	if err != nil {
		return 0, plain(err)
	}
	bundle, err := e.bundle(t.Life.Init.PID)
	if err != nil {
		return 0, err
	}
	described, err := in.Process(bundle, t.Life.Init.PID)
	if err != nil {
		return 0, err
	}
	io := &stdio{creator: silent}
	switch pipes := e.store.Path(t.ID, "io"); {
	case in.Detach && in.Terminal:
	case in.Detach:
		var gone func()
		if io, gone, err = unheard(pipes); err != nil {
			return 0, err
		}
		defer gone()
	default:
		if io, err = foreground(pipes, in.Terminal, inputOf(in)); err != nil {
			return 0, err
		}
	}
	defer io.restore()
	if err := s.Hold(); err != nil {
		return 0, err
	}
	ctx = context.WithoutCancel(ctx)
	p, err := task.Exec(ctx, execID(), described, io.creator)
	if err != nil {
		return 0, plain(err)
	}
	return e.follow(ctx, p, io, in.Detach, s)
}

// follow starts a command and waits for its end.
func (e *Engine) follow(ctx context.Context, p client.Process, io *stdio, detach bool, s *supervise.Signals) (int, error) {
	ended, err := p.Wait(ctx)
	if err != nil {
		return 0, plain(err)
	}
	if err := p.Start(ctx); err != nil {
		_, _ = p.Delete(ctx) // it never was
		return 0, ociruntime.BlameCommand(plain(err))
	}
	if io.unheard {
		_ = p.CloseIO(ctx, client.WithStdinCloser) // it may have ended itself
		return 0, nil
	}
	if detach {
		return 0, nil
	}
	io.attach(ctx, p)
	code, _, err := e.wait(ctx, supervised{p, ended, io, (*supervise.Process).Send}, s, supervise.Terms{})
	if err != nil {
		return 0, err
	}
	if _, err := p.Delete(ctx); err != nil && !errdefs.IsNotFound(err) {
		return 0, plain(err)
	}
	return code, nil
}

// bundle is where the container's spec is as berth-runtime has made it: the shim, which
// is the parent of a container's first process, stands there.
func (e *Engine) bundle(pid int) (string, error) {
	status, err := os.ReadFile(filepath.Join(e.proc(), strconv.Itoa(pid), "status"))
	if err != nil {
		return "", fmt.Errorf("%w any more", control.ErrNotRunning)
	}
	for line := range strings.Lines(string(status)) {
		if parent, ok := strings.CutPrefix(line, "PPid:"); ok {
			dir, err := os.Readlink(filepath.Join(e.proc(), strings.TrimSpace(parent), "cwd"))
			if err != nil {
				return "", fmt.Errorf("find the container's bundle: %w", err)
			}
			return dir, nil
		}
	}
	return "", fmt.Errorf("find the container's bundle: process %d has no parent", pid)
}

func execID() string {
	var b [8]byte
	rand.Read(b[:]) // never fails, by its contract
	return "exec-" + hex.EncodeToString(b[:])
}
