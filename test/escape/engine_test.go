package escape

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
)

// enginesAsked is set by make test-engines and make escape.
const enginesAsked = "BERTH_TEST_ENGINES"

// engine is a real engine: it loads the attacker's image and creates the container.
type engine struct {
	name string
	// old: with Debian 12's runtimes.
	old bool
	// docker: its archives have another format.
	docker bool
	// copies: containers get the annotations of their image, and values of annotations are split at
	// commas.
	copies bool
	noCDI  string // the reason why it gives no CDI devices, "" if it does
	start  func(t *testing.T, w *world)
	load   []string // arguments before the archive's path
	unload []string // arguments before the image's name
	remove []string // arguments before the container's name
	// run creates a container; program takes the place of the runtime.
	run func(w *world, program, id string, options []string, image string) []string
}

// engineWorld is a world with an engine and its share of the attacks.
type engineWorld struct {
	suite, cgroup, runtime string
	engine                 engine
	only                   string // what the names of attacks begin with that it has if each is made once
}

// engineWorlds returns the engines, each with both versions of cgroups and, where supported here, with
// both runtimes.
func engineWorlds() []engineWorld {
	return []engineWorld{
		{"forky", "v1", "runc", dockerEngine(), ""},
		{"forky", "v1", "runc", podmanEngine(), ""},
		{"forky", "v1", "crun", containerdEngine(), ""},
		{"forky", "v2", "runc", dockerEngine(), ""},
		{"forky", "v2", "crun", podmanEngine(), ""},
		{"forky", "v2", "runc", containerdEngine(), ""},
		{"bookworm", "v1", "runc", oldContainerd(), ""},
		{"bookworm", "v2", "crun", oldPodman(), "forged/"},
	}
}

// TestEngines checks that every attack that an engine's user can make works on the naive injector
// and fails on berth, as the engine's runtime and as its hook. go test makes each attack in one of
// the theatres, in turn.
func TestEngines(t *testing.T) {
	if os.Getenv(enginesAsked) != "1" {
		t.Skip("needs engines: make test-engines")
	}
	for number, th := range engineWorlds() {
		t.Run(strings.Join([]string{th.suite, th.cgroup, th.engine.name, th.runtime}, "/"), func(t *testing.T) {
			w := th.open(t)
			for i, a := range attacks() {
				if !*everywhere && !th.makesAttack(number, i, a) {
					continue
				}
				t.Run(a.name, func(t *testing.T) {
					for _, entryPoint := range []string{"naive", "wrapper", "hook"} {
						t.Run(entryPoint, func(t *testing.T) { a.run(t, w, entryPoint) })
					}
				})
			}
			w.settles(t)
		})
	}
}

// makesAttack reports whether the theatre with this number makes the attack, if it doesn't make all.
func (th engineWorld) makesAttack(number, i int, a attack) bool {
	if th.only != "" {
		return strings.HasPrefix(a.name, th.only)
	}
	const turns = 7 // number of theatres that share them
	return (i+i/turns)%turns == number
}

// startedHosts are the started hosts by suite and version of cgroups.
type startedHosts map[string]*rack.Host

var hosts = startedHosts{}

// open starts the host, unless it is running, and the engine.
func (th engineWorld) open(t *testing.T) *world {
	t.Helper()
	key := th.suite + "-" + th.cgroup
	h := hosts[key]
	dir := filepath.Join(shared.Dir, key)
	if h == nil {
		rig.Must(t, os.MkdirAll(dir, 0o755))
		h = hosts.startHost(t, key, th)
	}
	w := &world{Node: shared.Join(h), runtime: th.runtime, cgroup: th.cgroup, engine: &th.engine, share: dir}
	w.devices = accelerators(t, w.Node)
	th.engine.start(t, w)
	return w
}

func (all startedHosts) startHost(t *testing.T, key string, th engineWorld) *rack.Host {
	t.Helper()
	tree, err := rack.Tree(th.suite)
	rig.Must(t, err)
	simnode := filepath.Join(shared.Dir, "simnode")
	rig.Must(t, rack.Simnode(simnode))
	h, err := rack.Start(rack.Options{Tree: tree, Cgroup: th.cgroup, Simnode: simnode, Share: shared.Dir, Key: "escape-" + key})
	rig.Must(t, err)
	all[key] = h
	if th.cgroup == "v2" {
		rig.Must(t, h.LeaveRoot())
	}
	n := shared.Join(h)
	self, err := os.Executable()
	rig.Must(t, err)
	rig.Must(t, exec.Command("cp", self, (&world{Node: n}).self()).Run())
	for _, dir := range []string{"/etc/cdi", "/etc/berth", "/var/lib/berth", "/var/lib/docker", "/var/lib/containers", "/var/lib/containerd"} {
		rig.Must(t, os.MkdirAll(n.Path(dir), 0o755))
		if strings.HasPrefix(dir, "/var") { // on which overlays can't be made, unlike a server's file systems
			n.Do(t, "busybox", "mount", "-t", "tmpfs", "-o", "mode=711", "tmpfs", dir)
		}
	}
	rig.Must(t, os.WriteFile(n.Path("/etc/cdi/escape.json"), []byte(vendor), 0o644))
	n.Do(t, n.Berth, "discover", "--quiet")
	n.Do(t, n.Berth, "cdi", "generate")
	return h
}

// end stops the hosts.
func (all startedHosts) end() (code int) {
	for _, h := range all {
		if err := h.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "escape:", err)
			code = 1
		}
	}
	return code
}

// dir returns a scene's directory: where an engine can see it, if there is one.
func (w *world) dir(t *testing.T) string {
	t.Helper()
	if w.engine == nil {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(w.share, "scene")
	rig.Must(t, err)
	t.Cleanup(func() { rig.Must(t, os.RemoveAll(dir)) })
	return dir
}

// daemon starts a program that goes on until the host ends, once.
func (w *world) daemon(t *testing.T, works []string, words ...string) {
	t.Helper()
	if w.Run(t, w.Command(works[0], works[1:]...)).Code == 0 {
		return
	}
	log, err := os.Create(filepath.Join(w.share, filepath.Base(words[0])+".log"))
	rig.Must(t, err)
	defer log.Close()
	cmd := w.Command(words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	rig.Must(t, cmd.Start())
	go func() { _ = cmd.Wait() }() // it is killed in the end
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if w.Run(t, w.Command(works[0], works[1:]...)).Code == 0 {
			return
		}
	}
	text, err := os.ReadFile(log.Name())
	t.Fatalf("%v doesn't start: %s %v", words, text, err)
}

// self returns the path of this program, which also is the naive injector.
func (w *world) self() string { return filepath.Join(w.Dir, "escape") }

// program returns the path of the program that takes the place of the runtime at an entry point.
func (w *world) program(entryPoint string) string {
	switch entryPoint {
	case "naive":
		return filepath.Join(w.share, "naive")
	case "wrapper":
		return w.Runtime
	}
	return "/usr/bin/" + w.runtime
}

func containerdDaemon(t *testing.T, w *world) {
	t.Helper()
	w.daemon(t, []string{"ctr", "version"}, "containerd")
}

func dockerEngine() engine {
	return engine{
		name: "docker", docker: true,
		start: func(t *testing.T, w *world) {
			containerdDaemon(t, w)
			w.daemon(t, []string{"docker", "info"}, rack.Dockerd("--add-runtime", "naive="+w.program("naive"), "--add-runtime", "berth="+w.program("wrapper"))...)
		},
		load: []string{"docker", "load", "--quiet", "--input"}, unload: []string{"docker", "rmi", "--force"},
		remove: []string{"docker", "rm", "--force"},
		run: func(w *world, program, id string, options []string, image string) []string {
			name := map[string]string{w.program("naive"): "naive", w.program("wrapper"): "berth"}[program]
			if name == "" {
				name = filepath.Base(program)
			}
			words := []string{"docker", "run", "--rm", "--interactive", "--network", "none", "--name", id, "--runtime", name}
			return append(append(words, options...), image)
		},
	}
}

// oldPodman is podman 4.
func oldPodman() engine {
	e := podmanEngine()
	e.old, e.copies = true, true
	return e
}

// oldContainerd is containerd 1.6.
func oldContainerd() engine {
	e := containerdEngine()
	e.old, e.noCDI = true, "its client knows no CDI"
	return e
}

// podmanEngine adds CAP_MKNOD, which other engines give by default.
func podmanEngine() engine {
	return engine{
		name: "podman", start: func(*testing.T, *world) {},
		load: rack.Podman("load", "--quiet", "--input"), unload: rack.Podman("rmi", "--force"), remove: rack.Podman("rm", "--force", "--time", "0"),
		run: func(_ *world, program, id string, options []string, image string) []string {
			words := rack.Podman("--runtime", program, "run", "--rm", "--interactive", "--network", "none", "--name", id, "--cap-add", "MKNOD")
			return append(append(words, rack.PodmanLimits(options...)...), image)
		},
	}
}

func containerdEngine() engine {
	return engine{
		name: "containerd", start: containerdDaemon,
		load: []string{"ctr", "images", "import"}, unload: []string{"ctr", "images", "rm", "--sync"},
		remove: []string{"sh", "-c", "ctr task kill --signal 9 $0; sleep 1; ctr task rm $0; ctr container rm $0"},
		run: func(_ *world, program, id string, options []string, image string) []string {
			words := []string{"ctr", "run", "--rm", "--cpu-shares", "0", "--runc-binary", program}
			return append(append(words, options...), image, id)
		},
	}
}
