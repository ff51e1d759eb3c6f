package features

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// task describes a container.
type task struct {
	request string // "" is none
	env     []string
	policy  string   // the admin's policy
	root    string   // "" is a new one
	flags   []string // of berth run
	// change changes an engine's spec, only for the entry points with a bundle.
	change func(*specs.Spec)
	bundle string // its directory, "" is a new one
}

// container is a container that runs the probe.
type container struct {
	t  *testing.T
	d  entryPoint
	id string
	task
	config  string // berth's
	written string // config.json as the engine wrote it
	before  []string

	commands *os.File
	answers  *bufio.Scanner
	finish   func() rig.Said // ends it
}

var counter atomic.Int32

// root makes a root file system with the probe, with glibc's loader, for which berth
// writes a cache, and with a node of each accelerator, as a hostile image brings them
// along.
func (d entryPoint) root(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "rootfs")
	for _, dir := range []string{"bin", "proc", "sys", "dev", "tmp", "nodes", "host/dev", "etc/ld.so.conf.d", "lib64", "usr/bin"} {
		rig.Must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	for _, file := range []string{"/lib64/ld-linux-x86-64.so.2", "/etc/ld.so.cache"} {
		data, err := os.ReadFile(file)
		rig.Must(t, err)
		rig.Must(t, os.WriteFile(filepath.Join(root, file), data, 0o755))
	}
	rig.Must(t, os.Link(probe, filepath.Join(root, "probe")))
	for _, dev := range d.accelerators(t) {
		path := filepath.Join(root, "nodes", dev.number())
		rig.Must(t, unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(dev.major, dev.minor))))
		rig.Must(t, os.Chmod(path, 0o666))
	}
	return root
}

// spec returns an engine's spec: the host's /dev is bound, and device rules have to close it.
func (c *container) spec() *specs.Spec {
	capabilities := []string{"CAP_DAC_OVERRIDE", "CAP_MKNOD"}
	s := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: c.root},
		Process: &specs.Process{
			Cwd: "/", Args: []string{"/probe"}, Env: append([]string{"PATH=/"}, c.env...),
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Permitted: capabilities, Effective: capabilities,
				Inheritable: capabilities, Ambient: capabilities,
			},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/host/dev", Type: "bind", Source: "/dev", Options: []string{"rbind", "rprivate"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/" + c.id,
			Namespaces:  []specs.LinuxNamespace{{Type: "pid"}, {Type: "mount"}, {Type: "network"}, {Type: "ipc"}},
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
		Annotations: map[string]string{},
	}
	switch {
	case c.d.way == byHook:
		h := specs.Hook{Path: filepath.Join(c.d.Dir, "berth-hook"), Args: []string{"berth-hook", "--config", c.config, "createRuntime"}}
		if c.request != "" {
			h.Args = append(h.Args, "--request", c.request)
		}
		s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{h}}
		if c.d.runtime == "crun" { // it discards the output of hooks, unless a file for it is configured
			s.Annotations["run.oci.hooks.stderr"] = c.hookErrors()
		}
	case c.request != "":
		s.Annotations["berth.gpus"] = c.request
	}
	if c.change != nil {
		c.change(s)
	}
	return s
}

func (c *container) hookErrors() string { return filepath.Join(c.bundle, "hook.err") }

func (c *container) configJSON() string { return filepath.Join(c.bundle, "config.json") }

// try creates a container and starts the probe in it. said is the output of a failure.
func (d entryPoint) try(t *testing.T, k task) (c *container, said rig.Said) {
	t.Helper()
	c = &container{t: t, d: d, task: k, id: fmt.Sprintf("features-%d-%d", os.Getpid(), counter.Add(1)), config: d.configure(t, k.policy)}
	if c.root == "" {
		c.root = d.root(t)
	}
	c.before = files(t, c.root)
	if d.way == byRun || d.way == byAlloc {
		return c, c.launch()
	}
	if c.bundle == "" {
		c.bundle = t.TempDir()
	}
	data, err := json.MarshalIndent(c.spec(), "", "\t")
	rig.Must(t, err)
	rig.Must(t, os.WriteFile(c.configJSON(), data, 0o600))
	c.written = string(data)
	return c, c.create()
}

// pipes gives a command the container's standard input and output.
func (c *container) pipes(cmd *exec.Cmd) (done func()) {
	c.t.Helper()
	in, commands, err := os.Pipe()
	rig.Must(c.t, err)
	answers, out, err := os.Pipe()
	rig.Must(c.t, err)
	cmd.Stdin, cmd.Stdout = in, out
	c.commands, c.answers = commands, bufio.NewScanner(answers)
	c.t.Cleanup(func() { commands.Close(); answers.Close() })
	return func() { in.Close(); out.Close() }
}

func (c *container) command(name string, args ...string) *exec.Cmd {
	cmd := c.d.Command(name, args...)
	cmd.Env = append(os.Environ(), "BERTH_CONFIG="+c.config)
	return cmd
}

// runtime is the program that an engine calls.
func (c *container) runtime(words ...string) *exec.Cmd {
	program := c.d.Runtime
	if c.d.way == byHook {
		program = c.d.runtime
	}
	return c.command(program, append([]string{"--root", filepath.Join(c.bundle, "state")}, words...)...)
}

// create makes and starts a container of the bundle as engines do.
func (c *container) create() rig.Said {
	c.t.Helper()
	remove := func() rig.Said { return c.d.Run(c.t, c.runtime("delete", "--force", c.id)) }
	c.t.Cleanup(func() { _ = remove() })
	cmd := c.runtime("create", "--bundle", c.bundle, "--pid-file", filepath.Join(c.bundle, "pid"), c.id)
	done := c.pipes(cmd)
	said := c.d.Run(c.t, cmd)
	done()
	if text, err := os.ReadFile(c.hookErrors()); err == nil {
		said.Err += string(text)
	}
	if said.Code == 0 {
		said = c.d.Run(c.t, c.runtime("start", c.id))
	}
	c.finish = remove
	return said
}

// launch has berth run make and start it.
func (c *container) launch() rig.Said {
	c.t.Helper()
	args := []string{c.d.Berth, "run", "--interactive", "--rw", "--network", "none", "--name", c.id, "-v", "/dev:/host/dev"}
	for _, e := range c.env {
		args = append(args, "--env", e)
	}
	args = append(args, c.flags...)
	if c.d.way == byAlloc {
		args = append([]string{c.d.Berth, "alloc", c.request, "--"}, args...)
	} else if c.request != "" {
		args = append(args, "--gpus", c.request)
	}
	args = append(args, c.root, "/probe")
	cmd := c.command(args[0], args[1:]...)
	done := c.pipes(cmd)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	rig.Must(c.t, cmd.Start())
	done()
	var said *rig.Said
	c.finish = func() rig.Said {
		if said == nil {
			var exit *exec.ExitError
			if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
				c.t.Error(err)
			}
			said = &rig.Said{Code: cmd.ProcessState.ExitCode(), Err: errs.String()}
		}
		return *said
	}
	c.t.Cleanup(func() { c.commands.Close(); _ = c.finish() })
	if _, ok := c.answer("ls /none"); ok {
		return rig.Said{}
	}
	return c.finish()
}

// run creates a container, which has to succeed.
func (d entryPoint) run(t *testing.T, k task) *container {
	t.Helper()
	c, said := d.try(t, k)
	if said.Code != 0 {
		t.Fatalf("exit code %d: %s", said.Code, said.Err)
	}
	return c
}

// answer sends the probe a command. ok is false if there is no probe.
func (c *container) answer(command string) (lines []string, ok bool) {
	if _, err := c.commands.WriteString(command + "\n"); err != nil {
		return nil, false
	}
	for c.answers.Scan() {
		if c.answers.Text() == "." {
			return lines, true
		}
		lines = append(lines, c.answers.Text())
	}
	return nil, false
}

func (c *container) ask(command string) []string {
	c.t.Helper()
	lines, ok := c.answer(command)
	if !ok {
		c.t.Fatalf("%s: no answer: %v", command, c.answers.Err())
	}
	return lines
}

// wantAnswer compares the answer with the expected one.
func (c *container) wantAnswer(command string, want ...string) {
	c.t.Helper()
	if got := c.ask(command); !slices.Equal(got, want) {
		c.t.Errorf("%s: %q, want %q", command, got, want)
	}
}

// exists reports whether there is a file at a path.
func (c *container) exists(path string) bool {
	c.t.Helper()
	return !strings.HasPrefix(c.ask("open " + path)[0], "ENOENT")
}

// lease returns the container's lease, which must exist.
func (c *container) lease() rig.Lease {
	c.t.Helper()
	live := slices.DeleteFunc(c.d.Leases(c.t), func(l rig.Lease) bool { return !l.Live })
	if len(live) != 1 {
		c.t.Fatalf("leases: %+v", live)
	}
	return live[0]
}

// end ends the container. checkNothingLeft checks the leftovers.
func (c *container) end() {
	c.t.Helper()
	rig.Must(c.t, c.commands.Close())
	if said := c.finish(); said.Code != 0 {
		c.t.Errorf("exit code %d: %s", said.Code, said.Err)
	}
	c.checkNothingLeft()
}
