package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// engineFlags say who runs tasks.
func engineFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "engine", Usage: "have tasks run by `ENGINE`: native (berth itself, the default) or containerd", EnvVars: []string{"BERTH_ENGINE"}},
		&cli.StringFlag{Name: "containerd-address", Usage: "reach containerd at the socket `FILE` (default: /run/containerd/containerd.sock)", EnvVars: []string{"CONTAINERD_ADDRESS"}, TakesFile: true},
	}
}

// otherEngine is a container engine that has a program of its own to speak with it.
type otherEngine struct {
	program string
	request engine.Request // of which each verb's begins
}

// engineOf is the engine that the command line, the environment or the configuration
// names; nil is berth itself.
func engineOf(c *cli.Context, conf berth.Config) (*otherEngine, error) {
	switch name := or(c.String("engine"), or(conf.Run.Engine, "native")); name {
	case "native":
		return nil, nil
	case "containerd":
	default:
		return nil, usageError{fmt.Errorf("--engine %q is not known%s: there are native and containerd", name, didYouMean(name, []string{"native", "containerd"}))}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	program, err := programOf(containerdProgram)
	if err != nil {
		return nil, fmt.Errorf("--engine containerd: %w, or leave out --engine", err)
	}
	return &otherEngine{program, engine.Request{
		Address: or(c.String("containerd-address"), conf.Run.ContainerdAddress), Config: c.String("config"), Berth: self, Access: registryAccess(conf),
	}}, nil
}

// containerdProgram has containerd's libraries, which are slow to start with.
const containerdProgram = "berth-containerd"

// newFetcher is the program that pulls images into berth's own store.
func newFetcher(conf berth.Config) (*otherEngine, error) {
	program, err := programOf(containerdProgram)
	if err != nil {
		return nil, err
	}
	return &otherEngine{program, engine.Request{Verb: "fetch", Store: imageStore(conf).Dir, Access: registryAccess(conf)}}, nil
}

// programOf finds a program beside this one, or where packages put it.
func programOf(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	for _, dir := range []string{filepath.Dir(self), "/usr/lib/berth"} {
		program := filepath.Join(dir, name)
		if fi, err := os.Stat(program); err == nil && fi.Mode().IsRegular() {
			return program, nil
		}
	}
	return "", fmt.Errorf("there is no %s beside %s nor in /usr/lib/berth; install it", name, self)
}

// execEngine has this process go on as the engine's program. It returns only if it can't.
func (e otherEngine) execEngine(req engine.Request) error {
	f, err := req.Write()
	if err != nil {
		return err
	}
	if fd := int(f.Fd()); fd == engine.RequestFD { // which is still to be closed on exec
		_, err = unix.FcntlInt(engine.RequestFD, unix.F_SETFD, 0)
	} else {
		err = unix.Dup2(fd, engine.RequestFD)
	}
	if err != nil {
		return fmt.Errorf("tell %s: %w", e.program, err)
	}
	return fmt.Errorf("become %s: %w", e.program, unix.Exec(e.program, []string{filepath.Base(e.program)}, os.Environ()))
}

// callEngine has the program do something, and reads its answer into value, which may be nil.
func (e otherEngine) callEngine(ctx context.Context, req engine.Request, value any, progress func(image.Progress)) (err error) {
	f, err := req.Write()
	if err != nil {
		return err
	}
	defer f.Close() // all of it was read
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("call %s: %w", e.program, err)
	}
	defer r.Close() // only read from
	cmd := exec.CommandContext(ctx, e.program)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{f, w} // 3 and 4
	// The call is cancelled when this process is killed, for the pipe then ends.
	if _, err := cmd.StdinPipe(); err != nil {
		return errors.Join(fmt.Errorf("call %s: %w", e.program, err), w.Close())
	}
	err = errors.Join(cmd.Start(), w.Close())
	if err != nil {
		return fmt.Errorf("call %s: %w", e.program, err)
	}
	data, err := engine.Receive(bufio.NewReader(r), progress)
	if _, e := io.Copy(io.Discard, r); e != nil {
		err = errors.Join(err, e)
	}
	ended := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case ended != nil: // it has crashed or was killed, whatever it has answered
		return fmt.Errorf("%s ended early: %w", filepath.Base(e.program), ended)
	case len(data) > 0 && value != nil:
		err = errors.Join(err, json.Unmarshal(data, value))
	}
	return err
}

// runElsewhere has an engine's program run a task.
func runElsewhere(c *cli.Context, e *otherEngine, o launcher.Options) error {
	if os.Getenv("BERTH_LEASE") != "" {
		return errors.New("--engine containerd: a container of containerd can't have the lease of the berth alloc around this process; unset BERTH_LEASE to take one of its own")
	}
	if c.Bool("mpi") {
		return errors.New("--mpi: a container of containerd's can't be the rank of a launcher here; leave out --engine")
	}
	if path := c.String("config"); path != berth.ConfigPath {
		return fmt.Errorf("--engine containerd: berth-runtime reads %s, whatever --config says", berth.ConfigPath)
	}
	run := &engine.Run{Options: o, Detach: c.Bool("detach"), Wait: waitOf(c)}
	if o.Runtime = ""; c.IsSet("runtime") {
		o.Runtime = c.String("runtime")
	}
	run.Options.Runtime, run.Options.Progress = o.Runtime, nil
	devices := c.StringSlice("device")
	request, asks, err := parseDeviceFlags(c.String("gpus"), c.IsSet("gpus"), devices)
	if err != nil {
		return err
	}
	if asks {
		run.Devices = request.String()
	}
	req := e.request
	req.Verb, req.Run = "run", run
	return e.execEngine(req)
}

// keeper is where tasks are kept, and who acts on them: berth itself, or an engine.
type keeper struct {
	tasks.Store
	native tasks.Store     // berth's own, whoever acts
	ctx    context.Context //nolint:containedctx // of the command line's one verb
	other  *otherEngine    // nil for berth itself
}

// List returns all tasks, the latest first.
func (k keeper) List() ([]tasks.Task, error) {
	if k.other == nil {
		return k.Store.List()
	}
	var all []tasks.Task
	return all, k.askEngine(k.ctx, engine.Request{Verb: "list"}, &all)
}

// ListUnended is List without tasks that have ended and are kept; an engine lists those, too.
func (k keeper) ListUnended() ([]tasks.Task, error) {
	if k.other == nil {
		return k.Store.ListUnended()
	}
	return k.List()
}

// errElsewhere: there is such a task, which another engine runs.
var errElsewhere = errors.New("it is a task of")

// Find returns the task that a person means.
func (k keeper) Find(word string) (tasks.Task, error) {
	t, err := k.findTask(word)
	if !errors.Is(err, tasks.ErrNotFound) {
		return t, err
	}
	if flag := k.engineThatHas(word); flag != "" {
		return t, fmt.Errorf("task %q isn't here: %w --engine %s", word, errElsewhere, flag)
	}
	return t, err
}

// engineThatHas is the engine that has a task which this one hasn't, by the flag that names
// it, or "". What is noted of it is enough: nobody is asked.
func (k keeper) engineThatHas(word string) string {
	if k.other != nil {
		if _, err := k.native.Find(word); err == nil {
			return "native"
		}
	}
	usual := engine.Store(k.native, "").Data
	places, err := filepath.Glob(filepath.Join(filepath.Dir(usual), "*"))
	if err != nil {
		return ""
	}
	for _, dir := range places {
		if dir == k.Data {
			continue
		}
		if _, err := (tasks.Store{Data: dir, State: k.native.State, Proc: k.native.Proc}).Find(word); err == nil {
			if dir != usual {
				return "containerd with the --containerd-address that it was run with"
			}
			return "containerd"
		}
	}
	return ""
}

func (k keeper) findTask(word string) (tasks.Task, error) {
	if k.other == nil {
		return k.Store.Find(word)
	}
	all, err := k.List()
	if err != nil {
		return tasks.Task{}, err
	}
	return tasks.Choose(all, word)
}

// Ended says whether nothing more comes of a task.
func (k keeper) Ended(id string) bool {
	if k.other != nil {
		if x, err := k.Exit(id); err != nil || x != nil {
			return true
		}
		t, err := k.Find(id)
		return err != nil || t.State == tasks.Exited || t.State == tasks.Lost
	}
	t, err := k.Task(id)
	return err != nil || t.State == tasks.Exited || t.State == tasks.Lost
}

func (k keeper) askEngine(ctx context.Context, req engine.Request, value any) error {
	full := k.other.request
	full.Verb, full.Task, full.Grace, full.Signal, full.Force = req.Verb, req.Task, req.Grace, req.Signal, req.Force
	return k.other.callEngine(ctx, full, value, nil)
}

// Stop ends a task, as control.Stop does.
func (k keeper) Stop(ctx context.Context, t tasks.Task, grace time.Duration) error {
	if k.other == nil {
		return control.Stop(ctx, k.Store, t, grace)
	}
	return k.askEngine(ctx, engine.Request{Verb: "stop", Task: t.ID, Grace: grace}, nil)
}

// Signal sends a signal to a task's first process.
func (k keeper) Signal(t tasks.Task, sig syscall.Signal) error {
	if k.other == nil {
		return control.Signal(k.ctx, k.Store, t, sig)
	}
	return k.askEngine(k.ctx, engine.Request{Verb: "signal", Task: t.ID, Signal: int(sig)}, nil)
}

// Wait waits for a task's end and returns its exit code.
func (k keeper) Wait(ctx context.Context, t tasks.Task) (code int, err error) {
	if k.other == nil {
		return control.Wait(ctx, k.Store, t)
	}
	err = k.askEngine(ctx, engine.Request{Verb: "wait", Task: t.ID}, &code)
	return code, err
}

// Remove removes what is kept of a task.
func (k keeper) Remove(ctx context.Context, t tasks.Task, force bool) error {
	if k.other == nil {
		return control.Remove(ctx, k.Store, t, force)
	}
	return k.askEngine(ctx, engine.Request{Verb: "remove", Task: t.ID, Force: force}, nil)
}

// Exec runs a command in a task. With an engine this process becomes it.
func (k keeper) Exec(ctx context.Context, t tasks.Task, in control.ExecOptions) (int, error) {
	if k.other == nil {
		return control.Exec(ctx, k.Store, t, in)
	}
	req := k.other.request
	req.Verb, req.Task, req.Exec = "exec", t.ID, &in
	return exitBerth, k.other.execEngine(req)
}

// engineFailedCommand says an error of an engine's program, which became this one again:
// what to do about it is known here.
func engineFailedCommand() *cli.Command {
	return &cli.Command{
		Name:   "engine-failed",
		Hidden: true,
		Action: func(c *cli.Context) error {
			var f engine.Failure
			if err := json.NewDecoder(strings.NewReader(c.Args().First())).Decode(&f); err != nil {
				return fmt.Errorf("read an engine's error: %w", err)
			}
			return exitError{f.Code, &f}
		},
	}
}
