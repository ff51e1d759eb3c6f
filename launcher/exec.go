package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/launcher/rootfs"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// ErrNotRunning: the task has no container to do something in.
var ErrNotRunning = errors.New("it isn't running")

// Inside is a command to be run in a container that runs. It gets the container's
// namespaces, cgroup, device rules, capabilities and system call filter: whatever the
// task can't reach, it can't either.
type Inside struct {
	Command []string
	// Env entries are "K=V" and win over the container's.
	Env []string
	// Dir and User replace those of the container. User is "user[:group]", looked up
	// in the container's own files.
	Dir, User string
	// Terminal and Interactive are as in Options. Detach returns as soon as the
	// command has begun; it has no input and no output then.
	Terminal, Interactive, Detach bool

	// Stdin, Stdout and Stderr become the command's. nil means those of this process.
	Stdin, Stdout, Stderr *os.File `json:"-"`
}

// Exec runs a command in a task's container and returns its exit code, or 128 plus the
// signal that ended it. With an error, the code says whose failure it was, as that of
// Run does. Signals are taken over and passed to the command as Run does it. store is
// where the task was found.
func Exec(ctx context.Context, store tasks.Store, t tasks.Task, in Inside) (int, error) {
	s := supervise.TakeSignals()
	defer func() { go s.Stop() }() // nobody has to wait for it
	code, err := execIn(s.Context(ctx), store, t, in, s)
	if err != nil {
		return supervise.ExitCode(err), fmt.Errorf("task %s: %w", t.Name, err)
	}
	return code, nil
}

func execIn(ctx context.Context, store tasks.Store, t tasks.Task, in Inside, s *supervise.Signals) (_ int, err error) {
	in = in.withDefaults()
	if err := in.check(); err != nil {
		return 0, err
	}
	if t.State != tasks.Running || t.Life == nil {
		return 0, fmt.Errorf("%w: %s", ErrNotRunning, t.Status)
	}
	root, err := containerRoot(store, t.Life.Init)
	if err != nil {
		return 0, err
	}
	defer root.Close() // an O_PATH descriptor
	process, err := in.process(store.Path(t.ID, "bundle/config.json"), root)
	if err != nil {
		return 0, err
	}
	dir, err := newExecDir(or(store.State, "/run/berth"))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dir.remove()) }()
	if err := dir.write(process); err != nil {
		return 0, err
	}
	null := supervise.ContainerNull(root)
	defer null.Close()
	return in.run(ctx, s, t, dir, null)
}

func (in Inside) withDefaults() Inside {
	if in.Stdin == nil {
		in.Stdin = os.Stdin
	}
	if in.Stdout == nil {
		in.Stdout = os.Stdout
	}
	if in.Stderr == nil {
		in.Stderr = os.Stderr
	}
	return in
}

func (in Inside) check() error {
	if len(in.Command) == 0 {
		return fmt.Errorf("%w: no command was given", ErrNotFound)
	}
	if in.Terminal && in.Interactive && !in.Detach && !supervise.IsTerminal(in.Stdin) {
		return supervise.ErrNoTerminal
	}
	if in.Dir != "" && !path.IsAbs(in.Dir) {
		return fmt.Errorf("working directory %q is not an absolute path", in.Dir)
	}
	for _, kv := range in.Env {
		if !spec.IsEnvEntry(kv) {
			return fmt.Errorf("environment entry %q is not NAME=VALUE", kv)
		}
	}
	return nil
}

// containerRoot is the root as the container's init sees it, with all mounts.
func containerRoot(store tasks.Store, init tasks.Process) (*os.File, error) {
	root, err := rootfs.Open(filepath.Join("/proc", strconv.Itoa(init.PID), "root"))
	if err == nil && store.Lives(init) { // afterwards, so that it is that process's
		return root, nil
	}
	if err == nil {
		err = root.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("open the container's root: %w", err)
	}
	return nil, fmt.Errorf("%w any more", ErrNotRunning)
}

// process is what the runtime is told: the process of the container's own spec, with
// what is different.
func (in Inside) process(config string, root *os.File) (*specs.Process, error) {
	data, err := os.ReadFile(config)
	if err != nil {
		return nil, fmt.Errorf("read the container's spec: %w", err)
	}
	var of specs.Spec
	if err := json.Unmarshal(data, &of); err != nil || of.Process == nil {
		return nil, fmt.Errorf("read %s: it describes no process: %w", config, err)
	}
	p := of.Process
	p.Args, p.Terminal, p.ConsoleSize, p.CommandLine = in.Command, in.Terminal, consoleBox(in.streams()), ""
	p.Cwd = or(in.Dir, p.Cwd)
	if err := in.become(p, root); err != nil {
		return nil, err
	}
	given := in.Env
	if in.Terminal && environ(append(slices.Clone(p.Env), given...), "TERM") == "" {
		given = append([]string{"TERM=xterm"}, given...)
	}
	p.Env = withEnv(p.Env, given)
	dir, err := inroot.OpenDir(root, p.Cwd)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("working directory %s isn't in the container", p.Cwd)
	}
	if err != nil {
		return nil, fmt.Errorf("working directory %s in the container: %w", p.Cwd, err)
	}
	if err := errors.Join(spec.RejectProcfs(dir, p.Cwd), dir.Close()); err != nil {
		return nil, err
	}
	return p, rootfs.FindCommand(root, p.Args[0], rootfs.Search{Path: environ(p.Env, "PATH"), Dir: p.Cwd})
}

// become changes the process's user. Root of the container has all that the container
// may have, everybody else nothing, as it is for the container's own command.
func (in Inside) become(p *specs.Process, root *os.File) error {
	if in.User == "" {
		return nil
	}
	was, err := rootfs.LookupUser(root, strconv.FormatUint(uint64(p.User.UID), 10))
	if err != nil {
		return err
	}
	u, err := rootfs.LookupUser(root, in.User)
	if err != nil {
		return err
	}
	p.User = specs.User{UID: u.UID, GID: u.GID, AdditionalGids: u.Groups}
	if environ(p.Env, "HOME") == was.Home { // and not one that was chosen
		p.Env = withEnv(p.Env, []string{"HOME=" + u.Home})
	}
	if c := p.Capabilities; c != nil {
		c.Effective, c.Permitted, c.Inheritable, c.Ambient = nil, nil, nil, nil
		if u.UID == 0 {
			c.Effective, c.Permitted = slices.Clone(c.Bounding), slices.Clone(c.Bounding)
		}
	}
	return nil
}

// environ looks a name up as programs do that ask for it.
func environ(env []string, name string) (value string) {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			value = v
		}
	}
	return value
}

// withEnv sets variables; each is there once.
func withEnv(env, more []string) []string {
	for _, kv := range more {
		name, _, _ := strings.Cut(kv, "=")
		env = slices.DeleteFunc(slices.Clone(env), func(old string) bool { return strings.HasPrefix(old, name+"=") })
		env = append(env, kv)
	}
	return env
}
