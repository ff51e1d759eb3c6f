package backend

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Tasks is the store of the tasks that a verb acts on: those of berth itself, or those of an engine.
type Tasks struct {
	tasks.Store
	Native tasks.Store     // the store of berth itself, also if Engine is set
	ctx    context.Context //nolint:containedctx // of the command line's one verb
	Engine *Engine         // nil for berth itself
	conf   berth.Config
}

// List returns all tasks, the latest first.
func (k Tasks) List() ([]tasks.Task, error) {
	if k.Engine == nil {
		return k.Store.List()
	}
	var all []tasks.Task
	return all, k.askEngine(k.ctx, engine.Request{Verb: "list"}, &all)
}

// ListUnended returns the tasks that have not ended. With an engine it returns all tasks.
func (k Tasks) ListUnended() ([]tasks.Task, error) {
	if k.Engine == nil {
		return k.Store.ListUnended()
	}
	return k.List()
}

// Find returns the task with this name, id or beginning of an id. If another engine has it, or another user,
// the error Is ErrElsewhere.
func (k Tasks) Find(word string) (tasks.Task, error) {
	t, err := k.findTask(word)
	if !errors.Is(err, tasks.ErrNotFound) {
		return t, err
	}
	if flag := k.findOtherEngine(word); flag != "" {
		return t, fmt.Errorf("there is no task %q here: %w --engine %s", word, ErrElsewhere, flag)
	}
	if other, found := FindUserTask(k.conf, word); found {
		return t, RefuseUserTask(k.conf, other)
	}
	return t, err
}

// findOtherEngine returns the flag of another engine that has the task, or "". It reads berth's records and calls no
// engine.
func (k Tasks) findOtherEngine(word string) string {
	if k.Engine != nil {
		if _, err := k.Native.Find(word); err == nil {
			return "native"
		}
	}
	usual := engine.Store(k.Native, "").Data
	dirs, err := filepath.Glob(filepath.Join(filepath.Dir(usual), "*"))
	if err != nil {
		return ""
	}
	for _, dir := range dirs {
		if dir == k.Data {
			continue
		}
		if _, err := (tasks.Store{Data: dir, State: k.Native.State, Proc: k.Native.Proc}).Find(word); err == nil {
			if dir != usual {
				return "containerd with the --containerd-address that it was run with"
			}
			return "containerd"
		}
	}
	return ""
}

func (k Tasks) findTask(word string) (tasks.Task, error) {
	if k.Engine == nil {
		return k.Store.Find(word)
	}
	all, err := k.List()
	if err != nil {
		return tasks.Task{}, err
	}
	return tasks.Choose(all, word)
}

// Ended reports whether a task has ended and will write no more output.
func (k Tasks) Ended(id string) bool {
	if k.Engine != nil {
		if x, err := k.Exit(id); err != nil || x != nil {
			return true
		}
		t, err := k.Find(id)
		return err != nil || t.State == tasks.Exited || t.State == tasks.Lost
	}
	t, err := k.Task(id)
	return err != nil || t.State == tasks.Exited || t.State == tasks.Lost
}

func (k Tasks) askEngine(ctx context.Context, req engine.Request, value any) error {
	full := k.Engine.Request
	full.Verb, full.Task, full.Grace, full.Signal, full.Force = req.Verb, req.Task, req.Grace, req.Signal, req.Force
	return k.Engine.Call(ctx, full, value, nil)
}

// Stop ends a task, as control.Stop does.
func (k Tasks) Stop(ctx context.Context, t tasks.Task, grace time.Duration) error {
	if k.Engine == nil {
		return control.Stop(ctx, k.Store, t, grace)
	}
	return k.askEngine(ctx, engine.Request{Verb: "stop", Task: t.ID, Grace: grace}, nil)
}

// Signal sends a signal to a task's first process.
func (k Tasks) Signal(t tasks.Task, sig syscall.Signal) error {
	if k.Engine == nil {
		return control.Signal(k.ctx, k.Store, t, sig)
	}
	return k.askEngine(k.ctx, engine.Request{Verb: "signal", Task: t.ID, Signal: int(sig)}, nil)
}

// Wait waits for a task's end and returns its exit code.
func (k Tasks) Wait(ctx context.Context, t tasks.Task) (code int, err error) {
	if k.Engine == nil {
		return control.Wait(ctx, k.Store, t)
	}
	err = k.askEngine(ctx, engine.Request{Verb: "wait", Task: t.ID}, &code)
	return code, err
}

// Remove removes the record and files of a task.
func (k Tasks) Remove(ctx context.Context, t tasks.Task, force bool) error {
	if k.Engine == nil {
		return control.Remove(ctx, k.Store, t, force)
	}
	return k.askEngine(ctx, engine.Request{Verb: "remove", Task: t.ID, Force: force}, nil)
}

// Exec runs a command in a task. With an engine this process replaces itself by the
// engine's program.
func (k Tasks) Exec(ctx context.Context, t tasks.Task, in control.ExecOptions) (int, error) {
	if k.Engine == nil {
		return control.Exec(ctx, k.Store, t, in)
	}
	req := k.Engine.Request
	req.Verb, req.Task, req.Exec = "exec", t.ID, &in
	return verb.ExitBerth, k.Engine.Become(req)
}

// ErrElsewhere means that another engine runs the task, or another user.
var ErrElsewhere = errors.New("it is a task of")
