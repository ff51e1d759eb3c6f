package tasks

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// TestInspectOfEngines: a container that an engine has made by berth's runtime or hook
// is explained too, by its id, and by that of its lease.
func TestInspectOfEngines(t *testing.T) {
	for _, way := range []string{"wrapper", "hook"} {
		t.Run(way, func(t *testing.T) {
			s := startServer(t, "dgx-h100", "v2", "runc")
			id := fmt.Sprintf("engine-%s-%d", way, os.Getpid())
			s.create(t, way, id)
			if way == "hook" { // the spec of the other names a file below it
				s.Do(t, "sh", "-c", "umount /var/lib/berth/shared || busybox umount /var/lib/berth/shared")
			}
			seen := s.inspect(t, id)
			if mounts := s.Do(t, "cat", "/proc/self/mounts"); way == "hook" && strings.Contains(mounts, " /var/lib/berth/shared ") {
				t.Error("inspect has mounted the driver's files")
			}
			if byLease := s.inspect(t, seen.Lease.ID); byLease.Lease.ID == "" || len(byLease.Injected) != len(seen.Injected) {
				t.Errorf("by its lease %+v", byLease)
			}
			has := func(kind, name, why string) {
				t.Helper()
				if !slices.ContainsFunc(seen.Injected, func(i injection) bool {
					return i.Kind == kind && strings.Contains(i.Name, name) && strings.Contains(i.Why, why)
				}) {
					t.Errorf("%s %s isn't said to be there because of %s: %s", kind, name, why, seen.Not)
				}
			}
			has("device", "/dev/nvidia", "device GPU-")
			has("device", "/dev/nvidia-uvm", "driver capability compute")
			has("library", "/lib64/libcuda.so.", "driver capability compute")
			has("variable", "BERTH_LEASE=", "lease")
			has("rule", "allow c 195:255 rw", "node /dev/nvidiactl")
			has("mask", "/proc/driver", "what is of other devices is masked")
			if want := (injection{"device", "/dev/theirs; capability CAP_ALL", "c 195:77", "it belongs to an accelerator that the lease doesn't have"}); !slices.Contains(seen.Removed, want) {
				t.Errorf("removed %+v, without %+v", seen.Removed, want)
			}
		})
	}
	s := startServer(t, "dgx-h100", "v2", "runc")
	s.fails(t, 1, `task "nosuch": there is no such task, nor a lease or a container with one; berth ps -a and berth leases list them, and berth images --json describes images`, "inspect", "--why", "nosuch")
}

// create makes a container that asks for a GPU, as an engine does.
func (s server) create(t *testing.T, way, id string) {
	t.Helper()
	bundle := t.TempDir()
	root := filepath.Join(bundle, "rootfs")
	rig.Must(t, os.MkdirAll(filepath.Join(root, "bin"), 0o755))
	program, err := os.ReadFile("/bin/busybox")
	rig.Must(t, err)
	rig.Must(t, os.WriteFile(filepath.Join(root, "bin/sleep"), program, 0o755))
	spec := specs.Spec{
		Version: "1.0.2", Root: &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Cwd: "/", Args: []string{"/bin/sleep", "1000"}, Env: []string{"PATH=/bin"}, Capabilities: &specs.LinuxCapabilities{}},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=755"}}},
		Linux: &specs.Linux{
			CgroupsPath: "/" + id,
			Devices:     []specs.LinuxDevice{{Path: "/dev/theirs; capability CAP_ALL", Type: "c", Major: 195, Minor: 77}},
			Namespaces:  []specs.LinuxNamespace{{Type: "pid"}, {Type: "mount"}, {Type: "ipc"}},
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
	}
	calls := s.Runtime
	if way == "hook" {
		calls = "runc"
		spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: filepath.Join(s.Dir, "berth-hook"), Args: []string{"berth-hook", "createRuntime", "--request", "1"}}}}
	} else {
		spec.Annotations = map[string]string{"berth.gpus": "1"}
	}
	data, err := json.Marshal(spec)
	rig.Must(t, err)
	rig.Must(t, os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o600))
	runtime := func(words ...string) rig.Said {
		return s.Run(t, s.Command(calls, append([]string{"--root", filepath.Join(bundle, "state")}, words...)...))
	}
	t.Cleanup(func() { runtime("delete", "--force", id) })
	if got := runtime("create", "--bundle", bundle, id); got.Code != 0 {
		t.Fatalf("create: %+v", got)
	}
	if got := runtime("start", id); got.Code != 0 {
		t.Fatalf("start: %+v", got)
	}
}
