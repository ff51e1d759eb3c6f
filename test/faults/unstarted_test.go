package faults

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// TestNeverStarted: a container that was made and never started, as a client that was killed
// leaves it, is shown as such, and ended once it is older than policy.unstarted: by the timer's
// discovery, and by a request for which too few devices are free. A started container stays. It makes no difference whether
// the runtime wrapper or a hook has taken the lease; the hook doesn't know the runtime's state directory.
func TestNeverStarted(t *testing.T) {
	timer, request := []string{"discover", "--if-stale", "--processes", "--quiet"}, []string{"alloc", "7", "--", "true"}
	for _, tt := range []struct {
		entryPoint, runtime string
		end                 []string // what ends it
	}{
		{"wrapper", "runc", timer},
		{"wrapper", "crun", request},
		{"hook", "runc", request},
		{"hook", "crun", timer},
	} {
		t.Run(tt.entryPoint+" "+tt.runtime, func(t *testing.T) {
			s := startServer(t, "dgx-h100", "v2", tt.runtime)
			configured := func(unstarted string) []string {
				path := filepath.Join(t.TempDir(), "config.toml")
				rig.Must(t, os.WriteFile(path, []byte("[policy]\nunstarted = \""+unstarted+"\"\n"), 0o600))
				return []string{"--config", path}
			}
			s.create(t, tt.entryPoint, "started-"+tt.runtime, true)
			s.create(t, tt.entryPoint, "unstarted-"+tt.runtime, false)
			states := s.Do(t, s.Berth, "leases")
			if strings.Count(states, "created\n") != 1 || strings.Count(states, "running\n") != 1 {
				t.Errorf("berth leases: %s", states)
			}
			renewal := s.Command(s.Berth, append(configured("1ms"), "discover", "--if-stale", "--quiet")...) // a start may wait for it
			if got := s.Run(t, renewal); got.Code != 0 || len(s.Leases(t)) != 2 {
				t.Errorf("discover --if-stale: %+v; %+v are left", got, s.Leases(t))
			}
			for _, limit := range []string{"1h", "never"} {
				s.Run(t, s.Command(s.Berth, append(configured(limit), tt.end...)...))
				if left := s.Leases(t); len(left) != 2 {
					t.Errorf("policy.unstarted = %s: %+v are left", limit, left)
				}
			}
			if got := s.Run(t, s.Command(s.Berth, append(configured("1ms"), tt.end...)...)); got.Code != 0 {
				t.Errorf("berth %q: %+v", tt.end, got)
			}
			wrapped := ""
			if tt.entryPoint == "wrapper" {
				wrapped = tt.runtime
			}
			if left := s.Leases(t); len(left) != 1 || left[0].Owner.Container != "started-"+tt.runtime || left[0].Owner.Runtime != wrapped {
				t.Errorf("%+v are left", left)
			}
		})
	}
}

// create has the runtime make a container with a GPU, as an engine does. Its lease is taken by the "wrapper" or by a "hook".
func (s server) create(t *testing.T, entryPoint, id string, start bool) {
	t.Helper()
	bundle := t.TempDir()
	root := filepath.Join(bundle, "rootfs")
	rig.Must(t, os.MkdirAll(filepath.Join(root, "bin"), 0o755))
	program, err := os.ReadFile("/bin/busybox")
	rig.Must(t, err)
	rig.Must(t, os.WriteFile(filepath.Join(root, "bin/sleep"), program, 0o755))
	spec := specs.Spec{
		Version: "1.0.2", Root: &specs.Root{Path: "rootfs"}, Annotations: map[string]string{"berth.gpus": "1"},
		Process: &specs.Process{Cwd: "/", Args: []string{"/bin/sleep", "1000"}, Env: []string{"PATH=/bin"}, Capabilities: &specs.LinuxCapabilities{}},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=755"}}},
		Linux: &specs.Linux{
			CgroupsPath: "/" + id,
			Namespaces:  []specs.LinuxNamespace{{Type: "pid"}, {Type: "mount"}, {Type: "ipc"}},
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
	}
	conf := filepath.Join(bundle, "berth.toml")
	rig.Must(t, os.WriteFile(conf, []byte("runtime = \""+s.runtime+"\"\n"), 0o600))
	caller := s.Runtime
	if entryPoint == "hook" {
		caller, spec.Annotations = s.runtime, nil
		spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{
			Path: filepath.Join(filepath.Dir(s.Runtime), "berth-hook"), Args: []string{"berth-hook", "--config", conf, "createRuntime", "--request", "1"},
		}}}
	}
	data, err := json.Marshal(spec)
	rig.Must(t, err)
	rig.Must(t, os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o600))
	runtime := func(words ...string) rig.Said {
		cmd := s.Command("env", append([]string{"BERTH_CONFIG=" + conf, caller, "--root", filepath.Join(bundle, "state")}, words...)...)
		return s.Run(t, cmd)
	}
	t.Cleanup(func() { runtime("delete", "--force", id) })
	if got := runtime("create", "--bundle", bundle, id); got.Code != 0 {
		t.Fatalf("create: %+v", got)
	}
	if start {
		if got := runtime("start", id); got.Code != 0 {
			t.Fatalf("start: %+v", got)
		}
	}
}
