package images

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// entryPoint is a way to start a container with a GPU: by the launcher, with its flags,
// or by the runtime wrapper.
type entryPoint struct {
	name     string
	runtime  string
	wrapper  bool
	readOnly bool     // nothing can be written to the root from inside
	flags    []string // of berth run
	env      []string
	gpus     string // "" means 1, "none" none
	config   string // what more the admin says
}

// entryPoints are the launcher and the wrapper, on both runtimes.
func entryPoints() []entryPoint {
	var all []entryPoint
	for _, runtime := range []string{"runc", "crun"} {
		all = append(all, entryPoint{name: "run " + runtime, runtime: runtime}, entryPoint{name: "wrapper " + runtime, runtime: runtime, wrapper: true})
	}
	return all
}

// readOnlyEntryPoints let nothing be written to the root.
func readOnlyEntryPoints() []entryPoint {
	var all []entryPoint
	for _, d := range entryPoints() {
		d.readOnly = true
		if !d.wrapper {
			d.flags = []string{"--read-only"}
		}
		d.name += " read-only"
		all = append(all, d)
	}
	return all
}

// through runs a subtest for each entry point.
func through(t *testing.T, all []entryPoint, f func(t *testing.T, d entryPoint)) {
	for _, d := range all {
		t.Run(d.name, func(t *testing.T) { f(t, d) })
	}
}

func (d entryPoint) request() string {
	if d.gpus == "" {
		return "1"
	}
	return d.gpus
}

var counter atomic.Int32

// run runs a shell script in a container of the image.
func (d entryPoint) run(t *testing.T, i image, script string) rig.Said {
	t.Helper()
	return d.exec(t, i, "/bin/sh", "-c", script)
}

func (d entryPoint) exec(t *testing.T, i image, argv ...string) rig.Said {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config.toml")
	write(t, config, fmt.Sprintf("runtime = %q\nberth = %q\n%s", d.runtime, node.Berth, d.config))
	program, args := node.Berth, append(d.launch(i), argv...)
	if d.wrapper {
		program, args = node.Runtime, d.bundle(t, i, argv)
	}
	cmd := node.Command("timeout", append([]string{"--kill-after=5", "120", program}, args...)...)
	cmd.Env = append(os.Environ(), "BERTH_CONFIG="+config)
	return node.Run(t, cmd)
}

func (d entryPoint) launch(i image) []string {
	args := append([]string{"run", "--network", "none"}, d.flags...)
	if d.request() != "none" {
		args = append(args, "--gpus", d.request())
	}
	for _, e := range d.env {
		args = append(args, "--env", e)
	}
	return append(args, i.dir)
}

// bundle writes what an engine gives a runtime, and returns the runtime's arguments.
func (d entryPoint) bundle(t *testing.T, i image, argv []string) []string {
	t.Helper()
	dir := t.TempDir()
	id := fmt.Sprintf("images-%d-%d", os.Getpid(), counter.Add(1))
	data, err := json.Marshal(d.spec(i, id, argv))
	rig.Must(t, err)
	write(t, filepath.Join(dir, "config.json"), string(data))
	global := []string{"--root", filepath.Join(dir, "state")}
	t.Cleanup(func() {
		_ = node.Command(node.Runtime, append(slices.Clone(global), "delete", "--force", id)...).Run()
	})
	return append(global, "run", "--bundle", dir, id)
}

// capabilities are Docker's.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

func (d entryPoint) spec(i image, id string, argv []string) *specs.Spec {
	s := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: i.dir, Readonly: d.readOnly},
		Process: &specs.Process{
			Cwd: "/", Args: argv,
			Env:          append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, d.env...),
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Permitted: capabilities, Effective: capabilities},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/" + id,
			Namespaces:  []specs.LinuxNamespace{{Type: "pid"}, {Type: "mount"}, {Type: "network"}, {Type: "ipc"}, {Type: "uts"}},
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
	}
	if d.request() != "none" {
		s.Annotations = map[string]string{"berth.gpus": d.request()}
	}
	return s
}

// good fails the test unless the container ended well.
func good(t *testing.T, said rig.Said) string {
	t.Helper()
	if said.Code != 0 {
		t.Fatalf("exit code %d: %s%s", said.Code, said.Out, said.Err)
	}
	return said.Out
}
