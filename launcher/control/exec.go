package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// ExecOptions describe a command to run in a container. The command gets the container's namespaces,
// cgroup, device rules, capabilities and system call filter, so it can do no more than the task.
type ExecOptions struct {
	Command []string
	// Env entries are "NAME=VALUE" and win over the container's.
	Env []string
	// Dir and User override those of the container. User is "user[:group]", looked up in the
	// container's own files.
	Dir, User string
	// Terminal gives the command a terminal, and Interactive connects Stdin. Detach returns
	// as soon as the command runs; it then has no input and no output.
	Terminal, Interactive, Detach bool

	// Stdin, Stdout and Stderr become the command's. nil means those of this process.
	Stdin, Stdout, Stderr *os.File `json:"-"`
}

// Exec runs a command in a task's container and returns the command's exit code, or 128 plus the
// number of the signal that ended it. With an error, the code is supervise.ExitCode of it. Exec
// forwards this process's signals to the command, as launcher.Run does.
func Exec(ctx context.Context, store tasks.Store, t tasks.Task, o ExecOptions) (int, error) {
	s := supervise.TakeSignals()
	defer func() { go s.Stop() }() // in the background: it waits for s.Ready
	code, err := execInContainer(s.Context(ctx), store, t, o, s)
	if err != nil {
		return supervise.ExitCode(err), fmt.Errorf("task %s: %w", t.Name, err)
	}
	return code, nil
}

func execInContainer(ctx context.Context, store tasks.Store, t tasks.Task, o ExecOptions, s *supervise.Signals) (_ int, err error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return 0, err
	}
	t, err = runningTask(ctx, store, t)
	if err != nil {
		return 0, err
	}
	root, err := openRoot(store, t.Life.Init)
	if err != nil {
		return 0, err
	}
	defer root.Close() // an O_PATH descriptor
	process, err := o.process(store.Path(t.ID, "bundle/config.json"), root)
	if err != nil {
		return 0, err
	}
	dir, err := newExecDir(cmp.Or(store.State, "/run/berth"))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dir.remove()) }()
	if err := dir.write(process); err != nil {
		return 0, err
	}
	null := supervise.ContainerNull(root)
	defer null.Close()
	return o.run(ctx, s, t, dir, null, process.User)
}

func (o ExecOptions) withDefaults() ExecOptions {
	o.Stdin, o.Stdout, o.Stderr = cmp.Or(o.Stdin, os.Stdin), cmp.Or(o.Stdout, os.Stdout), cmp.Or(o.Stderr, os.Stderr)
	return o
}

func (o ExecOptions) streams() supervise.Streams {
	return supervise.Streams{
		Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr,
		Terminal: o.Terminal, Interactive: !o.Detach && (o.Interactive || o.Terminal && supervise.IsTerminal(o.Stdin)),
	}
}

// startAs starts a runtime that runs a command as a user. In a user namespace, crun keeps the groups of its caller (see
// [spec.RestrictGroups]): for another user than root these have to be the user's already.
func startAs(u specs.User) func(*exec.Cmd) error {
	return func(cmd *exec.Cmd) error {
		if u.UID != 0 && userns.IsInside() {
			if cmd.SysProcAttr == nil {
				cmd.SysProcAttr = &syscall.SysProcAttr{}
			}
			cmd.SysProcAttr.Credential = &syscall.Credential{Groups: u.AdditionalGids}
		}
		return cmd.Start()
	}
}

// run runs the command that the directory describes, as this user, to its end unless it is detached.
func (o ExecOptions) run(ctx context.Context, s *supervise.Signals, t tasks.Task, dir execDir, null supervise.Null, user specs.User) (int, error) {
	c := supervise.Command{
		Streams: o.streams(), Null: null,
		Runtime: ociruntime.Runtime{Path: t.Runtime, Root: t.RuntimeRoot, Log: dir.in("log")},
		Args:    []string{"exec", "--process", dir.in("process.json"), "--pid-file", dir.in("pid")},
		ID:      t.ID, PIDFile: dir.in("pid"), Cgroup: t.Cgroup, CgroupMount: t.CgroupMount, Dir: dir.path, Detached: o.Detach,
	}
	c.Adopt = c.CopiesOutput()
	if c.Adopt || o.Detach && !o.Terminal {
		c.Args = append(c.Args, "--detach")
	}
	program := ociruntime.Seal(t.Runtime)
	defer program.Close()
	if err := c.Start(ctx, s, program, startAs(user)); err != nil {
		return 0, errors.Join(err, c.Drain(s, true))
	}
	if o.Detach && o.Terminal {
		return c.WaitStarted(ctx, s)
	}
	r, err := c.Wait(ctx, s, supervise.Terms{StopSignal: unix.SIGKILL})
	// Background processes of the command may hold its output open.
	if lost := c.Drain(s, false); lost != nil {
		return 0, lost
	}
	return r.Code, err
}

// execDir is a directory with the files that the runtime needs for one command. It is locked as long
// as the command runs; newExecDir removes directories that aren't locked.
type execDir struct {
	path string
	lock *os.File
}

func newExecDir(state string) (execDir, error) {
	all := filepath.Join(state, "exec")
	if err := os.MkdirAll(all, 0o700); err != nil {
		return execDir{}, fmt.Errorf("make directory for the command: %w", err)
	}
	gate, err := lock.Open(context.Background(), all, lock.Exclusive)
	if err != nil {
		return execDir{}, err
	}
	defer gate.Close() // nothing was written
	entries, err := os.ReadDir(all)
	if err != nil {
		return execDir{}, fmt.Errorf("make directory for the command: %w", err)
	}
	for _, e := range entries {
		old := filepath.Join(all, e.Name())
		held, busy := lock.TryOpen(old, lock.Exclusive)
		if busy != nil {
			continue
		}
		if err := errors.Join(os.RemoveAll(old), held.Close()); err != nil {
			return execDir{}, err
		}
	}
	d := execDir{path: filepath.Join(all, tasks.NewID())}
	if err := os.Mkdir(d.path, 0o700); err != nil {
		return execDir{}, fmt.Errorf("make directory for the command: %w", err)
	}
	d.lock, err = lock.TryOpen(d.path, lock.Exclusive)
	return d, err
}

func (d execDir) in(name string) string { return filepath.Join(d.path, name) }

func (d execDir) write(p *specs.Process) error {
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("describe the command: %w", err)
	}
	if err := os.WriteFile(d.in("process.json"), data, 0o600); err != nil {
		return fmt.Errorf("describe the command: %w", err)
	}
	return nil
}

func (d execDir) remove() error { return errors.Join(os.RemoveAll(d.path), d.lock.Close()) }
