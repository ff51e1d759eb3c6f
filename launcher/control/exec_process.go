package control

import (
	"cmp"
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
	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/launcher/rootfs"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// errPtrace refuses to run a command in a task with CAP_SYS_PTRACE. The OCI runtime joins the task's PID namespace with
// every capability, without a seccomp filter and, with runc, in the host's cgroup. Until it drops these, a process
// of the task can trace it, and run code with its rights.
var errPtrace = errors.New("a task with CAP_SYS_PTRACE could trace the OCI runtime when it joins the container, and get root on the host; " +
	"run the command as part of the task, or start the task without CAP_SYS_PTRACE, which --privileged and --cap-add ALL include")

func (o ExecOptions) check() error {
	if len(o.Command) == 0 {
		return fmt.Errorf("%w: no command was given", rootfs.ErrNotFound)
	}
	if o.Terminal && o.Interactive && !o.Detach && !supervise.IsTerminal(o.Stdin) {
		return supervise.ErrNoTerminal
	}
	if o.Dir != "" && !path.IsAbs(o.Dir) {
		return fmt.Errorf("working directory %q is not an absolute path", o.Dir)
	}
	for _, kv := range o.Env {
		if !spec.IsEnvEntry(kv) {
			return fmt.Errorf("environment entry %q is not NAME=VALUE", kv)
		}
	}
	return nil
}

// errNoFirstThread refuses to run a command in a task that only other threads of its init keep running. The kernel has
// released the namespaces and the root in procfs with the first thread, and OCI runtimes take the container for ended.
var errNoFirstThread = errors.New("it runs, but the first thread of its first process has ended; the kernel lets no command into such a container")

// openRoot opens the root of a container's init, with all mounts.
func openRoot(store tasks.Store, init tasks.Process) (*os.File, error) {
	root, err := rootfs.Open(filepath.Join("/proc", strconv.Itoa(init.PID), "root"))
	if err == nil && store.Lives(init) { // checked after opening, so that the root is this process's
		return root, nil
	}
	if err == nil {
		err = root.Close()
	}
	switch {
	case err == nil:
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH):
		return nil, fmt.Errorf("open the container's root: %w", err)
	case store.Lives(init):
		return nil, errNoFirstThread
	}
	return nil, fmt.Errorf("%w any more", ErrNotRunning)
}

// Process returns the OCI process of the command for a container engine. bundle is the directory of
// the container's config.json, and pid the container's first process.
func (o ExecOptions) Process(bundle string, pid int) (*specs.Process, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	root, err := rootfs.Open(filepath.Join("/proc", strconv.Itoa(pid), "root"))
	if err != nil {
		return nil, fmt.Errorf("open the container's root: %w", err)
	}
	p, err := o.process(filepath.Join(bundle, "config.json"), root)
	return p, errors.Join(err, root.Close())
}

// process returns the process of the container's spec with the options applied. config is the path of
// the container's config.json.
func (o ExecOptions) process(config string, root *os.File) (*specs.Process, error) {
	data, err := os.ReadFile(config)
	if err != nil {
		return nil, fmt.Errorf("read the container's spec: %w", err)
	}
	var of specs.Spec
	if err := json.Unmarshal(data, &of); err != nil {
		return nil, fmt.Errorf("read %s: %w", config, err)
	}
	if of.Process == nil {
		return nil, fmt.Errorf("read %s: it describes no process", config)
	}
	p := of.Process
	if p.Capabilities != nil && slices.Contains(p.Capabilities.Bounding, "CAP_SYS_PTRACE") {
		return nil, errPtrace
	}
	p.Args, p.Terminal, p.ConsoleSize, p.CommandLine = o.Command, o.Terminal, o.streams().ConsoleSize(), ""
	p.Cwd = cmp.Or(o.Dir, p.Cwd)
	if err := o.setUser(p, root); err != nil {
		return nil, err
	}
	given := o.Env
	if o.Terminal && lookupEnv(append(slices.Clone(p.Env), given...), "TERM") == "" {
		given = append([]string{"TERM=xterm"}, given...)
	}
	p.Env = setEnv(p.Env, given)
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
	return p, rootfs.FindCommand(root, p.Args[0], rootfs.Search{Path: lookupEnv(p.Env, "PATH"), Dir: p.Cwd, Execve: true})
}

// setUser sets the process's user. As for the container's own command, root gets all capabilities of
// the bounding set, and any other user none.
func (o ExecOptions) setUser(p *specs.Process, root *os.File) error {
	if o.User == "" {
		return nil
	}
	was, err := rootfs.LookupUser(root, strconv.FormatUint(uint64(p.User.UID), 10))
	if err != nil {
		return err
	}
	u, err := rootfs.LookupUser(root, o.User)
	if err != nil {
		return err
	}
	p.User = specs.User{UID: u.UID, GID: u.GID, AdditionalGids: u.Groups}
	if userns.IsInside() {
		spec.RestrictGroups(&p.User, userns.HasGroup)
	}
	if lookupEnv(p.Env, "HOME") == was.Home { // not set by the options or the image
		p.Env = setEnv(p.Env, []string{"HOME=" + u.Home})
	}
	if c := p.Capabilities; c != nil {
		c.Effective, c.Permitted, c.Inheritable, c.Ambient = nil, nil, nil, nil
		if u.UID == 0 {
			c.Effective, c.Permitted = slices.Clone(c.Bounding), slices.Clone(c.Bounding)
		}
	}
	return nil
}

// lookupEnv returns the value of an environment variable; the last entry of a name wins.
func lookupEnv(env []string, name string) (value string) {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			value = v
		}
	}
	return value
}

// setEnv returns a copy of env in which the entries of more replace those of the same names. They are
// at the end, each name once, with its last value.
func setEnv(env, more []string) []string {
	name := func(kv string) string {
		name, _, _ := strings.Cut(kv, "=")
		return name
	}
	last := map[string]int{} // index in more
	for i, kv := range more {
		last[name(kv)] = i
	}
	all := slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		_, set := last[name(kv)]
		return set
	})
	for i, kv := range more {
		if last[name(kv)] == i {
			all = append(all, kv)
		}
	}
	return all
}
