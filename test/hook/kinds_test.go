package hook

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// openedNodes returns the server's accelerators that can be opened: a node that the rules allow answers
// "ENXIO", because it has no driver.
func (c *container) openedNodes() []string {
	c.t.Helper()
	got := map[string]bool{}
	for _, d := range c.w.accelerators(c.t) {
		for _, path := range []string{d.path, fmt.Sprintf("/nodes/%d:%d", d.major, d.minor), "/host" + d.path} {
			if strings.Contains(c.ask("open " + path)[0], "ENXIO") {
				got[d.path] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(got))
}

// nodesOfLease returns the nodes that belong to the container's lease.
func (c *container) nodesOfLease() (paths []string) {
	c.t.Helper()
	p := c.w.State.Blueprint()
	for _, d := range c.lease().Devices {
		for i, g := range p.GPUs {
			if p.UUID(i) == d.UUID {
				paths = append(paths, fmt.Sprintf("/dev/nvidia%d", g.Minor))
			}
		}
	}
	if len(paths) > 0 {
		paths = append(paths, "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl")
	}
	slices.Sort(paths)
	return paths
}

// checkDevices checks that the container has so many GPUs, and nothing else.
func (c *container) checkDevices(gpus int) {
	c.t.Helper()
	if l := c.lease(); len(l.Devices) != gpus {
		c.t.Errorf("its lease is %+v, %d were asked for", l, gpus)
	}
	if got, want := c.openedNodes(), c.nodesOfLease(); !slices.Equal(got, want) {
		c.t.Errorf("it can open %v, and ought to %v", got, want)
	}
}

// Containers of many kinds get exactly the requested devices.
func TestKinds(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.configure(t, "")
		ask := func(words ...string) specs.Hook { return entry(config, append([]string{"createRuntime"}, words...)...) }
		hostDev := specs.Mount{Destination: "/host/dev", Type: "bind", Source: "/dev", Options: []string{"rbind", "rprivate"}}
		all := specs.LinuxDeviceCgroup{Allow: true, Access: "rwm"}
		for _, tt := range []struct {
			name string
			gpus int
			make func(*specs.Spec)
		}{
			{"by the annotation", 1, func(s *specs.Spec) {
				s.Annotations = map[string]string{"berth.gpus": "1"}
				withHooks(s, ask(), "createRuntime")
			}},
			{"by one device", 1, func(s *specs.Spec) { withHooks(s, ask("--request", "device=5"), "createRuntime") }},
			{"said twice", 1, func(s *specs.Spec) {
				withHooks(withHooks(s, ask("--request", "1"), "createRuntime"), ask("--request", "1"), "createRuntime")
			}},
			{"guard of a privileged container", 0, func(s *specs.Spec) {
				s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{all}
				s.Mounts = append(s.Mounts, hostDev)
				withHooks(s, ask(), "createRuntime")
			}},
			{"privileged, with a request", 1, func(s *specs.Spec) {
				s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{all}
				s.Mounts = append(s.Mounts, hostDev)
				withHooks(s, ask("--request", "1"), "createRuntime")
			}},
			{"nodes and binds of all of them", 1, func(s *specs.Spec) {
				for _, d := range w.accelerators(t) {
					major, minor := int64(d.major), int64(d.minor)
					s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: d.path, Type: "c", Major: major, Minor: minor})
					s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"})
					s.Mounts = append(s.Mounts, specs.Mount{Destination: "/host" + d.path, Type: "bind", Source: d.path, Options: []string{"bind"}})
				}
				withHooks(s, ask("--request", "1"), "createRuntime")
			}},
			{"guard at both stages, of binds of all of them", 0, func(s *specs.Spec) {
				for _, d := range w.accelerators(t) {
					s.Mounts = append(s.Mounts, specs.Mount{Destination: "/host" + d.path, Type: "bind", Source: d.path, Options: []string{"bind"}})
				}
				s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{all}
				withHooks(s, ask(), "prestart", "createRuntime")
			}},
			{"the host's /dev", 1, func(s *specs.Spec) {
				s.Mounts[1] = specs.Mount{Destination: "/dev", Type: "bind", Source: "/dev", Options: []string{"rbind", "rprivate"}}
				withHooks(s, ask("--request", "1"), "createRuntime")
			}},
			{"a root that is read-only", 1, func(s *specs.Spec) {
				s.Root.Readonly = true
				withHooks(s, ask("--request", "1"), "createRuntime")
			}},
			{"users of its own", 1, func(s *specs.Spec) {
				s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: "user"}, specs.LinuxNamespace{Type: "ipc"})
				s.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
				s.Linux.GIDMappings = s.Linux.UIDMappings
				// The kernel allows no new procfs where something is mounted over files of the
				// visible one.
				s.Mounts[0] = specs.Mount{Destination: "/proc", Type: "bind", Source: "/proc", Options: []string{"rbind"}}
				s.Linux.ReadonlyPaths, s.Linux.MaskedPaths = nil, nil
				for _, dir := range []string{filepath.Dir(s.Root.Path), filepath.Dir(filepath.Dir(s.Root.Path))} {
					rig.Must(t, os.Chmod(dir, 0o755))
				}
				withHooks(s, ask("--request", "1"), "createRuntime")
			}},
			{"no request, no accelerator", 0, func(s *specs.Spec) {
				withHooks(s, ask(), "createRuntime")
			}},
		} {
			t.Run(tt.name, func(t *testing.T) {
				before := w.nodes()
				spec := w.plain(t)
				tt.make(spec)
				c := run(t, w, w.runtime, config, spec)
				c.checkDevices(tt.gpus)
				if after := w.nodes(); after != before {
					t.Errorf("the host's /dev was changed: from\n%s to\n%s", before, after)
				}
				c.delete()
				c.checkNothingLeft()
			})
		}
	})
}

// nodes returns the node's own device files.
func (w *world) nodes() string {
	out, err := w.Command("find", "/dev", "-ls", "-xdev").CombinedOutput()
	return fmt.Sprintf("%s %v", out, err)
}

// A container that the wrapper prepares has one lease, whatever hooks it has.
func TestOneLease(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.configure(t, "")
		spec := w.plain(t)
		spec.Annotations = map[string]string{"berth.gpus": "2"}
		c := run(t, w, w.Runtime, config, withHooks(spec, entry(config, "createRuntime"), "prestart", "createRuntime"))
		if l := c.lease(); len(l.Devices) != 2 || l.Owner.Runtime != w.runtime {
			t.Errorf("its lease is %+v", l)
		}
		c.checkDevices(2)
		mounts := strings.Count(strings.Join(c.ask("cat /proc/self/mountinfo"), "\n"), " /usr/local/nvidia ")
		if mounts != 1 {
			t.Errorf("the driver is mounted %d times", mounts)
		}
		c.delete()
		c.checkNothingLeft()
	})
}

// TestNotesRuntimeRoot: the hook notes the state directory of the runtime, in which the guard and berth repair search for
// containers.
func TestNotesRuntimeRoot(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.configure(t, "")
		c := run(t, w, w.runtime, config, withHooks(w.plain(t), entry(config, "createRuntime", "--request", "1"), "createRuntime"))
		root := filepath.Join(c.bundle, "state")
		if got := w.Run(t, w.Command("find", "/var/lib/berth/runtime-roots", "-lname", root)); strings.Count(got.Out, "\n") != 1 {
			t.Errorf("%s isn't noted: %+v", root, got)
		}
		c.delete()
		c.checkNothingLeft()
	})
}

// A forged annotation gives no lease, and the id of another container's lease doesn't either.
func TestForgedLease(t *testing.T) {
	w := &world{Node: shared.Shared(t, "dgx-h100", "v2"), runtime: "runc", cgroup: "v2"}
	config := w.configure(t, "")
	first := run(t, w, w.runtime, config, withHooks(w.plain(t), entry(config, "createRuntime", "--request", "1"), "createRuntime"))
	for _, id := range []string{first.lease().ID, "0123456789ab"} {
		spec := w.plain(t)
		spec.Annotations = map[string]string{"dev.berth.lease": id}
		c := run(t, w, w.runtime, config, withHooks(spec, entry(config, "createRuntime", "--request", "1"), "createRuntime"))
		c.checkDevices(1)
		c.delete()
	}
	spec := withHooks(w.plain(t), entry(config, "bind", "--lease", first.lease().ID), "createRuntime")
	if said := prepare(t, w, w.runtime, config, spec).create(); said.Code == 0 || !strings.Contains(said.Err, "it is held by "+first.id) {
		t.Errorf("bind to another one's lease: exit code %d: %s", said.Code, said.Err)
	}
	first.delete()
	first.checkNothingLeft()
}

// The mount of specs of older versions.
func TestMount(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.configure(t, "")
		source := t.TempDir()
		rig.Must(t, os.MkdirAll(filepath.Join(source, "nvidia"), 0o755))
		rig.Must(t, os.WriteFile(filepath.Join(source, "nvidia/params"), []byte("ModifyDeviceFiles: 0\n"), 0o644))
		c := run(t, w, w.runtime, config, withHooks(w.plain(t), entry(config, "mount", source, "/proc/driver"), "createRuntime"))
		if got := c.ask("cat /proc/driver/nvidia/params"); !slices.Equal(got, []string{"ModifyDeviceFiles: 0"}) {
			t.Errorf("params: %q", got)
		}
		if got := c.ask("open /proc/driver/nvidia/params")[0]; got != "ok EROFS EROFS" {
			t.Errorf("open: %s", got)
		}
		c.delete()
		c.checkNothingLeft()
	})
}
