package hook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// refusal runs the first hook of the printed spec, which is the only new thing in it.
func (w *world) refusal(t *testing.T, config string, went rig.Said) rig.Said {
	t.Helper()
	var spec specs.Spec
	if went.Code != 0 || json.Unmarshal([]byte(went.Out), &spec) != nil || spec.Hooks == nil || len(spec.Hooks.Prestart) != 1 { //nolint:staticcheck // runtimes run these before all others
		t.Fatalf("exit code %d: %s%s", went.Code, went.Err, went.Out)
	}
	h := spec.Hooks.Prestart[0] //nolint:staticcheck // as above
	if want := []string{"berth-hook", "--config", config, "refuse"}; h.Path != hook || len(h.Args) != 5 || !slices.Equal(h.Args[:4], want) {
		t.Fatalf("its hook is %+v", h)
	}
	return w.Run(t, w.Command(h.Path, h.Args[1:]...))
}

// precreate calls the hook as podman does: by a process that lives until the container exists, here
// the test's shell.
func (w *world) precreate(t *testing.T, config string, spec []byte, then string, words ...string) rig.Said {
	t.Helper()
	dir := t.TempDir()
	rig.Must(t, os.WriteFile(filepath.Join(dir, "out.in"), spec, 0o600))
	line := hook + " --config " + config + " precreate " + strings.Join(words, " ") + " <OUT.in >OUT || exit; " + then
	said := w.Run(t, w.Command("sh", "-c", strings.ReplaceAll(line, "OUT", dir+"/out")))
	out, err := os.ReadFile(dir + "/out")
	rig.Must(t, err)
	said.Out = string(out)
	return said
}

// With the spec that precreate prints, a runtime makes the same container as the wrapper, and the
// lease is the container's.
func TestPrecreate(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.configure(t, "")
		made := w.plain(t)
		made.Annotations = map[string]string{"berth.gpus": "device=0,3"}
		wrapped := run(t, w, w.Runtime, config, made)
		want := wrapped.describeContainer(made)
		wrapped.delete()

		spec := withHooks(w.plain(t), entry(config, "createRuntime", "--request", "device=0,3"), "createRuntime")
		c := prepare(t, w, w.runtime, config, spec)
		in, out, done := c.pipes()
		// The hook's caller lives until the container exists.
		cmd := w.Command("sh", "-c", fmt.Sprintf(`exec 3<&0; %s --config %s precreate <"$1/config.json" >"$1/changed" && mv "$1/changed" "$1/config.json" && shift && "$@" <&3`, hook, config), "sh", c.bundle)
		cmd.Args = append(cmd.Args, append([]string{c.program}, c.createArguments()...)...)
		cmd.Stdin, cmd.Stdout = in, out
		said := w.Run(t, cmd)
		done()
		if said.Code != 0 {
			t.Fatalf("exit code %d: %s", said.Code, said.Err)
		}
		if said := c.act("start", c.id); said.Code != 0 {
			t.Fatalf("start: %s", said.Err)
		}
		got := c.describeContainer(spec)
		delete(want, "variable BERTH_LEASE")
		delete(got, "variable BERTH_LEASE")
		for k := range got {
			if want[k] != got[k] {
				t.Errorf("%s: with precreate %q, with the wrapper %q", k, got[k], want[k])
			}
		}
		for k := range want {
			if _, ok := got[k]; !ok {
				t.Errorf("%s is missing", k)
			}
		}
		leases := w.Leases(t)
		if len(leases) != 1 || !leases[0].Live || len(leases[0].Devices) != 2 {
			t.Errorf("leases: %+v", leases)
		}
		c.delete()
		c.checkNothingLeft()
	})
}

// If the wrapper is podman's runtime as well, it takes over precreate's lease, and takes no second
// one.
func TestPrecreateAndWrapper(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.configure(t, "")
		for _, way := range []string{"annotation", "entry"} {
			t.Run(way, func(t *testing.T) {
				spec := w.plain(t)
				if way == "annotation" {
					spec.Annotations = map[string]string{"berth.gpus": "2"}
				} else {
					spec = withHooks(spec, entry(config, "createRuntime", "--request", "2"), "createRuntime")
				}
				c := prepare(t, w, w.Runtime, config, spec)
				in, out, done := c.pipes()
				cmd := w.Command("sh", "-c", fmt.Sprintf(`exec 3<&0; %s --config %s precreate <"$1/config.json" >"$1/changed" && mv "$1/changed" "$1/config.json" && shift && "$@" <&3`, hook, config), "sh", c.bundle)
				cmd.Args = append(cmd.Args, append([]string{c.program}, c.createArguments()...)...)
				cmd.Env, cmd.Stdin, cmd.Stdout = c.env, in, out
				said := w.Run(t, cmd)
				done()
				if said.Code != 0 {
					t.Fatalf("exit code %d: %s", said.Code, said.Err)
				}
				if said := c.act("start", c.id); said.Code != 0 {
					t.Fatalf("start: %s", said.Err)
				}
				if live := w.live(t); len(live) != 1 || len(live[0].Devices) != 2 {
					t.Errorf("leases: %+v", live)
				}
				if got := c.openedNodes(); len(got) != 5 { // two GPUs, and the nodes that come with every GPU
					t.Errorf("it can open %v", got)
				}
				if mounts := strings.Count(strings.Join(c.ask("cat /proc/self/mountinfo"), "\n"), " /usr/local/nvidia "); mounts != 1 {
					t.Errorf("the driver is mounted %d times", mounts)
				}
				c.delete()
				if left := w.Leases(t); len(left) > 0 {
					t.Errorf("after delete the ledger has %+v", left)
				}
				c.checkNothingLeft()
			})
		}
	})
}

// Without a request, precreate prints the spec unchanged. After an error no lease stays, and the
// printed spec is one of a container that ends with the reason, or nothing is printed.
func TestPrecreateAlone(t *testing.T) {
	w := &world{Node: shared.Shared(t, "dgx-h100", "v2"), runtime: "crun", cgroup: "v2"}
	config := w.configure(t, "")
	plain, err := json.MarshalIndent(w.plain(t), "   ", " ")
	rig.Must(t, err)
	if said := w.precreate(t, config, plain, "true"); said.Code != 0 || said.Out != string(plain) {
		t.Errorf("a spec of no concern: exit code %d: %s%s", said.Code, said.Err, said.Out)
	}
	for name, tt := range map[string]struct {
		spec, words, want string
		read              bool
	}{
		"too many":      {string(plain), "--request 9", "9 asked", true},
		"not a request": {string(plain), "--request x,y", "request", true},
		"no root":       {`{"ociVersion":"1.0.2","linux":{}}`, "--request 1", "names no root", true},
		"no JSON":       {"{", "--request 1", "read spec", false},
		"nothing":       {"", "--request 1", "read spec", false},
		"key twice":     {`{"ociVersion":"1.0.2","linux":{},"linux":{}}`, "--request 1", "linux", false},
	} {
		t.Run(name, func(t *testing.T) {
			said := w.precreate(t, config, []byte(tt.spec), "true", tt.words)
			if tt.read {
				said = w.refusal(t, config, said)
			} else if said.Out != "" {
				t.Errorf("out %q", said.Out)
			}
			if said.Code != 1 || !strings.Contains(said.Err, tt.want) || strings.Count(said.Err, "\n") != 1 {
				t.Errorf("exit code %d: %s", said.Code, said.Err)
			}
			if l := w.Leases(t); len(l) > 0 && l[0].Live {
				t.Errorf("leases: %+v", l)
			}
		})
	}
	// A second call for the same container means that the caller has given up the first try.
	again := w.plain(t)
	again.Linux.CgroupsPath = "/libpod_parent/libpod-" + strings.Repeat("0a", 32)
	data, err := json.Marshal(again)
	rig.Must(t, err)
	if said := w.precreate(t, config, data, hook+" --config "+config+" precreate --request 8 <OUT.in >OUT", "--request 8"); said.Code != 0 {
		t.Errorf("a second try: exit code %d: %s", said.Code, said.Err)
	}
	// The lease lives as long as the hook's caller.
	said := w.precreate(t, config, plain, w.Berth+" --config "+config+" leases --json >OUT.leases; cat OUT.leases >&2", "--request 8")
	var view struct{ Leases []rig.Lease }
	rig.Must(t, json.Unmarshal([]byte(said.Err), &view))
	if len(view.Leases) != 1 || !view.Leases[0].Live || len(view.Leases[0].Devices) != 8 {
		t.Errorf("while podman lives: %s", said.Err)
	}
	var changed specs.Spec
	rig.Must(t, json.Unmarshal([]byte(said.Out), &changed))
	want := []string{"berth-hook", "--config", config, "bind", "--lease", view.Leases[0].ID}
	// After the cases that runc refuses.
	if h := changed.Hooks.CreateRuntime; len(h) == 0 || h[len(h)-1].Path != hook || !slices.Equal(h[len(h)-1].Args, want) {
		t.Errorf("hooks: %+v", changed.Hooks)
	}
	if l := w.Leases(t); len(l) > 0 && l[0].Live {
		t.Errorf("after its end: %+v", l)
	}
}

// TestPrecreateForcedRelease: the forced release of a lease whose container doesn't exist yet kills no service of
// podman's, and the container can't start afterwards.
func TestPrecreateForcedRelease(t *testing.T) {
	w := &world{Node: shared.Shared(t, "dgx-h100", "v2"), runtime: "crun", cgroup: "v2"}
	config, id := w.configure(t, ""), strings.Repeat("0b", 32)
	spec := w.plain(t)
	spec.Linux.CgroupsPath = "/libpod_parent/libpod-" + id
	data, err := json.Marshal(spec)
	rig.Must(t, err)
	berth := w.Berth + " --config " + config
	said := w.precreate(t, config, data, berth+" leases --json >OUT.leases; "+berth+" release --force "+id+" >OUT.released 2>&1; "+
		"cat OUT.leases >&2; echo the service lives >OUT.lives; "+berth+" alloc all -- cat OUT.released OUT.lives >OUT", "--request 8")
	var view struct{ Leases []rig.Lease }
	rig.Must(t, json.Unmarshal([]byte(said.Err), &view))
	if len(view.Leases) != 1 || view.Leases[0].Status != "starting" {
		t.Fatalf("leases before: %s", said.Err)
	}
	if want := "released " + view.Leases[0].ID + ": GPU 0,1,2,3,4,5,6,7\nthe service lives\n"; said.Out != want {
		t.Errorf("exit code %d: %q, want %q", said.Code, said.Out, want)
	}
	if bind := w.Run(t, w.Command(hook, "--config", config, "bind", "--lease", view.Leases[0].ID)); bind.Code != 1 {
		t.Errorf("bind: %+v", bind)
	}
}

// podman itself, with the admin's directory of hooks.
func TestPodman(t *testing.T) {
	if _, err := exec.LookPath("podman"); err != nil {
		t.Fatalf("needs podman: %v", err)
	}
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.configure(t, "[policy]\npodman_annotation = true\n")
		for _, stage := range []string{"precreate", "createRuntime"} {
			t.Run(stage, func(t *testing.T) {
				p := newPodman(t, w, config, stage)
				spec := w.plain(t)
				name := fmt.Sprintf("berth-hook-%d-%d", os.Getpid(), counter.Add(1))
				t.Cleanup(func() {
					_ = p.do("rm", "--force", "--time", "0", name)
					// On a node without a unified tree crun writes into its mount point.
					w.Do(t, "sh", "-c", "test $(stat -fc %T /sys/fs/cgroup/unified) = cgroup2fs || rm -rf /sys/fs/cgroup/unified/"+name)
					w.removeCgroups(t, name)
				})
				// podman's own limits are higher than what root may set on some machines.
				said := p.do("run", "--ulimit", "nofile=256:256", "--ulimit", "nproc=256:256", "--detach", "--interactive", "--name", name, "--annotation", "berth.gpus=2",
					"--network", "none", "--pids-limit=0", "--cgroup-parent", "/"+name, "--rootfs", spec.Root.Path, "/probe")
				if said.Code != 0 {
					t.Fatalf("podman run: exit code %d: %s", said.Code, said.Err)
				}
				id := strings.TrimSpace(said.Out)
				live := w.live(t)
				if len(live) != 1 || len(live[0].Devices) != 2 || live[0].Owner.Container != id {
					t.Fatalf("leases: %+v", live)
				}
				c := &container{t: t, w: w, id: id}
				got := map[string]bool{}
				var asked bytes.Buffer
				all := w.accelerators(t)
				for _, d := range all {
					fmt.Fprintf(&asked, "open %s\n", d.path)
				}
				cmd := p.command("exec", "--interactive", name, "/probe")
				cmd.Stdin = &asked
				answers := strings.Split(w.Run(t, cmd).Out, ".\n")
				for i, d := range all {
					if i < len(answers) && strings.Contains(answers[i], "ENXIO") {
						got[d.path] = true
					}
				}
				for _, path := range c.nodesOfLease() {
					if !got[path] {
						t.Errorf("%s can't be opened: %q", path, answers)
					}
					delete(got, path)
				}
				if len(got) > 0 {
					t.Errorf("these can be opened too: %v", got)
				}
				w.Do(t, "rm", "-rf", "/run/berth")
				if said := w.Run(t, w.Command(w.Berth, "repair")); said.Code != 0 || !strings.Contains(said.Err, "; rebuilt with 1 lease\n") {
					t.Errorf("repair: %+v", said)
				}
				if again := w.live(t); len(again) != 1 || again[0].ID != live[0].ID || !slices.Equal(again[0].Devices, live[0].Devices) {
					t.Errorf("leases after the repair: %+v, before %+v", again, live)
				}
				if said := p.do("rm", "--force", "--time", "0", name); said.Code != 0 {
					t.Errorf("podman rm: %s", said.Err)
				}
				for range 100 { // conmon may take a moment to delete it
					if live = w.live(t); len(live) == 0 {
						break
					}
					time.Sleep(20 * time.Millisecond)
				}
				if len(live) > 0 {
					t.Errorf("leases after the end: %+v", live)
				}
			})
		}
	})
}

func (w *world) live(t *testing.T) (all []rig.Lease) {
	t.Helper()
	for _, l := range w.Leases(t) {
		if l.Live {
			all = append(all, l)
		}
	}
	return all
}

// podman with storage of its own.
type podman struct {
	t    *testing.T
	w    *world
	args []string
}

func newPodman(t *testing.T, w *world, config, stage string) *podman {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-podman-") // short, for the sockets' paths
	rig.Must(t, err)
	t.Cleanup(func() { rig.Must(t, os.RemoveAll(dir)) })
	rig.Must(t, os.MkdirAll(dir+"/hooks.d", 0o755))
	text, err := json.Marshal(map[string]any{
		"version": "1.0.0",
		"hook":    map[string]any{"path": hook, "args": []string{"berth-hook", "--config", config, stage}},
		"when":    map[string]any{"annotations": map[string]string{"^berth\\.gpus$": "."}},
		"stages":  []string{stage},
	})
	rig.Must(t, err)
	rig.Must(t, os.WriteFile(dir+"/hooks.d/berth.json", text, 0o644))
	path, err := exec.LookPath(w.runtime)
	rig.Must(t, err)
	return &podman{t, w, []string{
		"--root", dir + "/root", "--runroot", dir + "/run", "--tmpdir", dir + "/tmp", "--storage-driver", "vfs",
		"--cgroup-manager", "cgroupfs", "--events-backend", "none", "--hooks-dir", dir + "/hooks.d", "--runtime", path,
	}}
}

func (p *podman) command(words ...string) *exec.Cmd {
	return p.w.Command("podman", append(append([]string{}, p.args...), words...)...)
}

func (p *podman) do(words ...string) rig.Said { return p.w.Run(p.t, p.command(words...)) }
