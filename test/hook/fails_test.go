package hook

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// If a hook fails, the runtime gives up the container, the error is one line, and nothing is left.
func TestFailure(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.configure(t, "")
		for _, tt := range []struct {
			name, want string
			change     func(*specs.Spec) *specs.Spec
		}{
			{"too many", "node has 8 GPUs, 9 asked", func(s *specs.Spec) *specs.Spec {
				return withHooks(s, entry(config, "createRuntime", "--request", "9"), "createRuntime")
			}},
			{"no request", "request", func(s *specs.Spec) *specs.Spec {
				return withHooks(s, entry(config, "createRuntime", "--request", "two or so"), "createRuntime")
			}},
			{"contradiction", "contradicting requests", func(s *specs.Spec) *specs.Spec {
				s.Annotations = map[string]string{"berth.gpus": "1"}
				return withHooks(s, entry(config, "createRuntime", "--request", "2"), "createRuntime")
			}},
			{"features alone", "no GPU that it would be for", func(s *specs.Spec) *specs.Spec {
				return withHooks(s, entry(config, "createRuntime", "--with", "gds"), "createRuntime")
			}},
			{"a lease that isn't there", "no such lease", func(s *specs.Spec) *specs.Spec {
				return withHooks(s, entry(config, "bind", "--lease", "0123456789ab"), "createRuntime")
			}},
			{"no driver", "take the node's inventory", func(s *specs.Spec) *specs.Spec {
				other := w.configure(t, fmt.Sprintf("state = %q\n[host]\nnvml = '/none.so'\n", t.TempDir()))
				return withHooks(s, entry(other, "createRuntime", "--request", "1"), "createRuntime")
			}},
			{"configuration", "unknown key", func(s *specs.Spec) *specs.Spec {
				return withHooks(s, entry(w.configure(t, "colour = 1\n"), "createRuntime", "--request", "1"), "createRuntime")
			}},
			{"after the lease", "mounted there", func(s *specs.Spec) *specs.Spec {
				// Another mount where the node has to be.
				s.Mounts = append(s.Mounts, specs.Mount{Destination: "/dev/nvidiactl", Type: "bind", Source: "/dev/null", Options: []string{"bind"}})
				return withHooks(s, entry(config, "createRuntime", "--request", "1"), "createRuntime")
			}},
		} {
			t.Run(tt.name, func(t *testing.T) {
				c := prepare(t, w, w.runtime, config, tt.change(w.plain(t)))
				said := c.create()
				if said.Code == 0 || !strings.Contains(said.Err, tt.want) || strings.Count(said.Err, "berth-hook: ") != 1 {
					t.Errorf("exit code %d, %q; want %q", said.Code, said.Err, tt.want)
				}
				for _, l := range w.Leases(t) {
					if l.Owner.Container == c.id {
						t.Errorf("the hook didn't give back %+v", l)
					}
				}
				_ = c.act("delete", "--force", c.id) // as engines do
				c.checkNothingLeft()
			})
		}
	})
}

// Devices that others have leased are named, and stay leased.
func TestBusy(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.configure(t, "")
		ask := func(n string) *specs.Spec {
			return withHooks(w.plain(t), entry(config, "createRuntime", "--request", n), "createRuntime")
		}
		first := run(t, w, w.runtime, config, ask("6"))
		held := first.lease()
		second := prepare(t, w, w.runtime, config, ask("3"))
		if said := second.create(); said.Code == 0 || !strings.Contains(said.Err, "hook "+first.id[:12]) || !strings.Contains(said.Err, "berth leases") {
			t.Errorf("exit code %d: %s", said.Code, said.Err)
		}
		if l := second.lease(); l.ID != "" {
			t.Errorf("the second one has %+v", l)
		}
		third := run(t, w, w.runtime, config, ask("2"))
		if l := first.lease(); l.ID != held.ID || len(l.Devices) != 6 || len(third.lease().Devices) != 2 {
			t.Errorf("leases: %+v", w.Leases(t))
		}
		third.delete()
		first.delete()
		first.checkNothingLeft()
	})
}

// If the hook is killed at any moment, nothing is left that isn't free again when the runtime has
// given up the container.
func TestKilled(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.configure(t, "")
		dir := t.TempDir()
		killer := filepath.Join(dir, "berth-hook")
		script := "#!/bin/sh\nexec 3<&0\n" + hook + " \"$@\" <&3 & p=$!\nsleep $(cat " + dir + "/delay)\nkill -9 $p 2>/dev/null\nwait $p\n"
		rig.Must(t, os.WriteFile(killer, []byte(script), 0o755))
		killed := 0
		for i := range 25 {
			delay := fmt.Sprintf("%.4f", rand.Float64()*0.02)
			rig.Must(t, os.WriteFile(dir+"/delay", []byte(delay), 0o600))
			h := entry(config, "createRuntime", "--request", "all")
			h.Path = killer
			h.Env = []string{"PATH=/usr/bin:/bin"}
			c := prepare(t, w, w.runtime, config, withHooks(w.plain(t), h, "createRuntime"))
			if said := c.create(); said.Code != 0 {
				killed++
				if strings.Contains(said.Err, "berth-hook:") {
					t.Fatalf("round %d, after %s s: %s", i, delay, said.Err)
				}
			}
			_ = c.act("delete", "--force", c.id)
			c.checkNothingLeft()
		}
		if killed == 0 {
			t.Error("no hook was killed")
		}
		c := run(t, w, w.runtime, config, withHooks(w.plain(t), entry(config, "createRuntime", "--request", "all"), "createRuntime"))
		c.delete()
		c.checkNothingLeft()
	})
}

// poststop releases the lease at once.
func TestPoststop(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.configure(t, "")
		spec := withHooks(w.plain(t), entry(config, "createRuntime", "--request", "1"), "createRuntime")
		c := run(t, w, w.runtime, config, withHooks(spec, entry(config, "poststop"), "poststop"))
		c.delete()
		if l := w.Leases(t); len(l) > 0 {
			t.Errorf("after poststop: %+v", l)
		}
	})
}

// The hook is static and reads nothing of its environment.
func TestSurroundings(t *testing.T) {
	w := &world{Node: shared.Shared(t, "dgx-h100", "v2"), runtime: "crun", cgroup: "v2"}
	config := w.configure(t, "")
	spec := w.plain(t)
	evil := filepath.Join(t.TempDir(), "evil.so")
	rig.Must(t, os.WriteFile(evil, nil, 0o755))
	h := entry(config, "createRuntime", "--request", "1")
	h.Env = []string{"LD_PRELOAD=" + evil, "BERTH_CONFIG=/none", "GODEBUG=x=1", "PATH=" + filepath.Dir(evil)}
	c := run(t, w, w.runtime, config, withHooks(spec, h, "createRuntime"))
	if l := c.lease(); len(l.Devices) != 1 {
		t.Errorf("lease: %+v", l)
	}
	c.delete()
	c.checkNothingLeft()
	if out := w.Do(t, "sh", "-c", "ldd "+hook+" 2>&1 || true"); !strings.Contains(out, "not a dynamic executable") {
		t.Errorf("it isn't static: %s", out)
	}
}
