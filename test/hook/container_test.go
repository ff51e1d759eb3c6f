package hook

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// container is a container that runs the probe.
type container struct {
	t       *testing.T
	w       *world
	id      string
	config  string // of berth
	bundle  string
	program string // the runtime, or the wrapper
	env     []string

	commands *os.File
	answers  *bufio.Scanner
}

var counter atomic.Int32

// plain is a container without any accelerator in its spec, in a root with glibc's
// loader, for which berth writes a cache.
func (w *world) plain(t *testing.T) *specs.Spec {
	t.Helper()
	root := filepath.Join(t.TempDir(), "rootfs")
	for _, dir := range []string{"bin", "proc", "sys", "dev", "tmp", "nodes", "etc/ld.so.conf.d", "lib64", "usr/bin"} {
		rig.Must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	for _, file := range []string{"/lib64/ld-linux-x86-64.so.2", "/etc/ld.so.cache"} {
		data, err := os.ReadFile(file)
		rig.Must(t, err)
		rig.Must(t, os.WriteFile(filepath.Join(root, file), data, 0o755))
	}
	rig.Must(t, os.Link(probe, filepath.Join(root, "probe")))
	for _, d := range w.accelerators(t) {
		path := filepath.Join(root, "nodes", fmt.Sprintf("%d:%d", d.major, d.minor))
		rig.Must(t, unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))))
		rig.Must(t, os.Chmod(path, 0o666))
	}
	capabilities := []string{"CAP_DAC_OVERRIDE", "CAP_MKNOD"}
	return &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: root},
		Process: &specs.Process{
			Cwd: "/", Args: []string{"/probe"}, Env: []string{"PATH=/", "NVIDIA_VISIBLE_DEVICES=all"},
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Permitted: capabilities, Effective: capabilities,
				Inheritable: capabilities, Ambient: capabilities,
			},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		},
		Linux: &specs.Linux{
			Namespaces:  []specs.LinuxNamespace{{Type: "pid"}, {Type: "mount"}, {Type: "network"}},
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
			MaskedPaths: []string{"/proc/kcore", "/proc/acpi"}, ReadonlyPaths: []string{"/proc/sys"},
		},
	}
}

// entry returns a hook of berth's as CDI writes it.
func entry(config string, words ...string) specs.Hook {
	return specs.Hook{Path: hook, Args: append([]string{"berth-hook", "--config", config}, words...)}
}

// withHooks adds berth's hook at the stages.
func withHooks(s *specs.Spec, h specs.Hook, stages ...string) *specs.Spec {
	if s.Hooks == nil {
		s.Hooks = &specs.Hooks{}
	}
	for _, stage := range stages {
		switch stage {
		case "prestart":
			s.Hooks.Prestart = append(s.Hooks.Prestart, h) //nolint:staticcheck // Docker still writes it.
		case "createRuntime":
			s.Hooks.CreateRuntime = append(s.Hooks.CreateRuntime, h)
		case "poststop":
			s.Hooks.Poststop = append(s.Hooks.Poststop, h)
		}
	}
	return s
}

// prepare writes the bundle.
func prepare(t *testing.T, w *world, program, config string, spec *specs.Spec) *container {
	t.Helper()
	c := &container{
		t: t, w: w, id: fmt.Sprintf("hook-%d-%d", os.Getpid(), counter.Add(1)), config: config,
		bundle: t.TempDir(), program: program, env: append(os.Environ(), "BERTH_CONFIG="+config),
	}
	spec.Linux.CgroupsPath = "/" + c.id
	if w.runtime == "crun" {
		// crun discards the output of hooks, unless a file for it is configured.
		spec.Annotations = maps.Clone(spec.Annotations)
		if spec.Annotations == nil {
			spec.Annotations = map[string]string{}
		}
		spec.Annotations["run.oci.hooks.stderr"] = c.hookErrors()
	}
	c.write(spec)
	t.Cleanup(func() { _ = c.act("delete", "--force", c.id) })
	return c
}

func (c *container) hookErrors() string { return filepath.Join(c.bundle, "hook.err") }

func (c *container) write(spec *specs.Spec) {
	c.t.Helper()
	data, err := json.MarshalIndent(spec, "", "\t")
	rig.Must(c.t, err)
	rig.Must(c.t, os.WriteFile(filepath.Join(c.bundle, "config.json"), data, 0o600))
}

func (c *container) command(words ...string) *exec.Cmd {
	cmd := c.w.Command(c.program, append([]string{"--root", filepath.Join(c.bundle, "state")}, words...)...)
	cmd.Env = c.env
	return cmd
}

func (c *container) act(words ...string) rig.Said { return c.w.Run(c.t, c.command(words...)) }

// createArguments returns the runtime's arguments for a create.
func (c *container) createArguments() []string {
	return []string{"--root", filepath.Join(c.bundle, "state"), "create", "--bundle", c.bundle, "--pid-file", c.bundle + "/pid", c.id}
}

// pipes are the container's standard input and output; done closes this side's copies.
func (c *container) pipes() (in, out *os.File, done func()) {
	c.t.Helper()
	in, commands, err := os.Pipe()
	rig.Must(c.t, err)
	answers, out, err := os.Pipe()
	rig.Must(c.t, err)
	c.commands, c.answers = commands, bufio.NewScanner(answers)
	c.t.Cleanup(func() { commands.Close(); answers.Close() })
	return in, out, func() { in.Close(); out.Close() }
}

// create calls the runtime, and adds the hooks' output to its errors.
func (c *container) create() rig.Said {
	c.t.Helper()
	in, out, done := c.pipes()
	cmd := c.w.Command(c.program, c.createArguments()...)
	cmd.Env, cmd.Stdin, cmd.Stdout = c.env, in, out
	said := c.w.Run(c.t, cmd)
	done()
	if text, err := os.ReadFile(c.hookErrors()); err == nil {
		said.Err += string(text)
	}
	return said
}

// run creates and starts a container, which has to succeed.
func run(t *testing.T, w *world, program, config string, spec *specs.Spec) *container {
	t.Helper()
	c := prepare(t, w, program, config, spec)
	if said := c.create(); said.Code != 0 {
		t.Fatalf("create: exit code %d: %s", said.Code, said.Err)
	}
	if said := c.act("start", c.id); said.Code != 0 {
		t.Fatalf("start: exit code %d: %s", said.Code, said.Err)
	}
	return c
}

// ask sends the probe a command and returns the lines of its answer.
func (c *container) ask(command string) (lines []string) {
	c.t.Helper()
	_, err := c.commands.WriteString(command + "\n")
	rig.Must(c.t, err)
	for c.answers.Scan() {
		if c.answers.Text() == "." {
			return lines
		}
		lines = append(lines, c.answers.Text())
	}
	c.t.Fatalf("%s: no answer: %v", command, c.answers.Err())
	return nil
}

// delete deletes the container. checkNothingLeft checks the leftovers.
func (c *container) delete() {
	c.t.Helper()
	rig.Must(c.t, c.commands.Close())
	if said := c.act("delete", "--force", c.id); said.Code != 0 {
		c.t.Fatalf("delete: exit code %d: %s", said.Code, said.Err)
	}
}

// lease returns the live lease of the container, the zero Lease if it has none.
func (c *container) lease() rig.Lease {
	c.t.Helper()
	leases := slices.DeleteFunc(c.w.Leases(c.t), func(l rig.Lease) bool { return !l.Live || l.Owner.Container != c.id })
	switch len(leases) {
	case 0:
		return rig.Lease{}
	case 1:
		return leases[0]
	}
	c.t.Fatalf("%d leases: %+v", len(leases), leases)
	return rig.Lease{}
}

// checkNothingLeft checks that nothing of a deleted container is left: no live lease, no cgroup, and no
// mount of the driver's directory anywhere in the node.
func (c *container) checkNothingLeft() {
	c.t.Helper()
	// A process that exits stays in its cgroup for a moment.
	live := func() (left []rig.Lease) {
		for _, l := range c.w.Leases(c.t) {
			if l.Live {
				left = append(left, l)
			}
		}
		return left
	}
	left := live()
	for end := time.Now().Add(10 * time.Second); len(left) > 0 && time.Now().Before(end); left = live() {
		time.Sleep(10 * time.Millisecond)
	}
	if len(left) > 0 {
		c.t.Errorf("leases are left: %+v", left)
	}
	for _, tree := range []string{"", "devices/"} {
		if _, err := os.Stat(c.w.Path("/sys/fs/cgroup/" + tree + c.id)); err == nil {
			c.t.Errorf("cgroup %s%s is left", tree, c.id)
		}
	}
	for line := range strings.Lines(c.w.Do(c.t, "cat", "/proc/self/mountinfo")) {
		if strings.Contains(line, "/berth/driver/") || strings.Contains(line, c.bundle) {
			c.t.Errorf("mount is left: %s", line)
		}
	}
}
