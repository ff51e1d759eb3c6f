// Package guard holds black-box tests of the device guard, on nodes with cgroup version 2.
package guard

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rig"
)

var shared *rig.Rig

func TestMain(m *testing.M) {
	rig.Main(m, func(r *rig.Rig) error {
		shared = r
		return rig.MakeImages()
	})
}

// node is a simulated server with eight GPUs on which the guard was turned on.
type node struct {
	*rig.Node
	t *testing.T
}

func start(t *testing.T) node {
	t.Helper()
	n := shared.Once(t, "rooted", func() (*rig.Node, error) { return shared.StartRooted("dgx-h100") })
	n.Do(t, n.Berth, "guard", "on")
	t.Cleanup(func() { n.Do(t, n.Berth, "guard", "off") })
	return node{n, t}
}

// opening is a shell script that prints the numbers of the GPUs whose nodes it can open. The
// simulated nodes have no driver: an open that the kernel allows gives ENXIO, and not EPERM.
const opening = `for i in 0 1 2 3 4 5 6 7; do
	case $( (: </dev/nvidia$i) 2>&1) in *"No such device or address"*) printf %s $i;; *"ermitted"*) ;; *) printf '?';; esac
done; echo`

// user runs as a user without privileges.
var user = []string{"setpriv", "--reuid", "4711", "--regid", "4711", "--clear-groups"}

// opens returns the GPUs that a shell can open if it is started by these arguments.
func (n node) opens(words ...string) string {
	n.t.Helper()
	words = append(words, "sh", "-c", opening)
	return strings.TrimSpace(n.Do(n.t, words[0], words[1:]...))
}

func (n node) want(what, got, want string) {
	n.t.Helper()
	if got != want {
		n.t.Errorf("%s opens GPUs %q, want %q", what, got, want)
	}
}

// TestGuard: with the guard only leases, exempt cgroups and root open GPUs.
func TestGuard(t *testing.T) {
	n := start(t)
	n.want("a user", n.opens(user...), "")
	n.want("root", n.opens("env"), "01234567")
	n.want("root in a PID namespace", n.opens("unshare", "--pid", "--fork"), "")
	n.want("alloc", n.opens(n.Berth, "alloc", "2", "--"), "01")
	n.want("a user in alloc", n.opens(append([]string{n.Berth, "alloc", "2", "--"}, user...)...), "01")
	n.want("a user in namespaces in alloc", n.opens(append(append([]string{n.Berth, "alloc", "1", "--"}, user...), "unshare", "--user", "--map-root-user", "--pid", "--fork")...), "0")
	n.want("alloc in alloc", n.opens(n.Berth, "alloc", "2", "--", "env", "-u", "BERTH_LEASE", n.Berth, "alloc", "3", "--"), "456")
	n.want("root afterwards", n.opens("env"), "01234567")
	n.want("a user afterwards", n.opens(user...), "")

	n.Do(t, n.Berth, "guard", "off")
	n.want("a user without the guard", n.opens(user...), "01234567")
	n.Do(t, n.Berth, "guard", "on")
	n.want("a user with it again", n.opens(user...), "")
}

// TestGuardedTasks: with the guard, containers with a lease open their devices as without it.
func TestGuardedTasks(t *testing.T) {
	n := start(t)
	busybox, err := filepath.Abs("../../.cache/image/busybox")
	rig.Must(t, err)
	for _, runtime := range []string{"crun", "runc"} {
		for name, flags := range map[string][]string{"plain": nil, "SYS_ADMIN": {"--cap-add", "SYS_ADMIN"}, "user": {"--user", "4711"}} {
			t.Run(runtime+" "+name, func(t *testing.T) {
				n := node{n.Node, t}
				words := append([]string{n.Berth, "run", "--rm", "--runtime", runtime, "--gpus", "2"}, flags...)
				// A container has only the nodes of its own GPUs.
				n.want("berth run", strings.ReplaceAll(n.opens(append(words, busybox)...), "?", ""), "01")
				words = append([]string{n.Berth, "run", "--rm", "--runtime", runtime, "-n", "1", "--gpus-per-rank", "2"}, flags...)
				n.want("a gang", strings.NewReplacer("?", "", "rank-0 | ", "").Replace(n.opens(append(words, busybox)...)), "01")
			})
		}
	}
	id := strings.TrimSpace(n.Do(t, n.Berth, "run", "-d", "--gpus", "1", "--name", "long", busybox, "sleep", "1000"))
	t.Cleanup(func() { n.Do(t, n.Berth, "rm", "-f", id) })
	n.want("exec", strings.ReplaceAll(n.opens(n.Berth, "exec", "long"), "?", ""), "0")
	n.want("alloc beside it", n.opens(n.Berth, "alloc", "7", "--"), "1234567")
}

// TestStatus checks the output of berth guard.
func TestStatus(t *testing.T) {
	n := start(t)
	if got, want := n.Do(t, n.Berth, "guard", "status"), "on: GPUs open for 0 leases and 0 exempt cgroups; the host's root can open every GPU without a lease (guard.root)\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := n.Do(t, n.Berth, "alloc", "1", "--", n.Berth, "guard", "status", "--json"); !strings.Contains(got, `"leases": 1`) {
		t.Error(got)
	}
	n.Do(t, n.Berth, "guard", "off")
	if got := n.Do(t, n.Berth, "guard", "status"); !strings.HasPrefix(got, "off: ") {
		t.Error(got)
	}
	said := n.Run(t, n.Command("setpriv", "--reuid", "4711", "--regid", "4711", "--clear-groups", n.Berth, "guard", "on"))
	if said.Code == 0 || !strings.Contains(said.Err, "needs root") {
		t.Error(strconv.Itoa(said.Code), said.Err)
	}
}

// TestStatusOfEndedTask: the lease of a task that has ended isn't counted.
func TestStatusOfEndedTask(t *testing.T) {
	n := start(t)
	busybox, err := filepath.Abs("../../.cache/image/busybox")
	rig.Must(t, err)
	n.Do(t, n.Berth, "run", "-d", "--name", "ends", "--gpus", "1", busybox, "sleep", "1000")
	if got := n.Do(t, n.Berth, "guard", "status", "--json"); !strings.Contains(got, `"leases": 1`) {
		t.Error(got)
	}
	n.Do(t, n.Berth, "rm", "-f", "ends")
	if got := n.Do(t, n.Berth, "guard", "status", "--json"); !strings.Contains(got, `"leases": 0`) {
		t.Error(got)
	}
}

// TestDoctor: berth doctor compares the guard with the configuration.
func TestDoctor(t *testing.T) {
	n := start(t)
	conf := filepath.Join(n.Dir, "deny.toml")
	rig.Must(t, os.WriteFile(conf, []byte("[guard]\nroot = \"deny\"\n"), 0o644))
	berth := []string{n.Berth, "--config", conf}
	finding := func() (text string) {
		t.Helper()
		said := n.Run(t, n.Command(berth[0], append(berth[1:], "doctor", "--json")...)) // other checks may fail here
		var all []struct{ ID, State, Text, Fix string }
		rig.Decode(t, said.Out, &all)
		for _, f := range all {
			if f.ID == "guard" {
				text += f.State + ": " + f.Text + "; " + f.Fix + "\n"
			}
		}
		return text
	}
	fix := "berth --config " + conf + " guard on\n"
	if got, want := finding(), `warning: guard.root is "deny", and the guard that is on has "allow"; `+fix; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	n.Do(t, n.Berth, "--config", conf, "guard", "on")
	if got, want := finding(), "ok: it is on, as configured; \n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	n.Do(t, n.Berth, "guard", "off")
	if got, want := finding(), "warning: it is off, although [guard] is configured: processes without a lease can open GPUs; "+fix; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// bundle makes an OCI bundle whose process prints what it can open. edit changes the spec.
func (n node) bundle(id string, edit func(map[string]any)) string {
	n.t.Helper()
	dir := n.t.TempDir()
	busybox, err := exec.LookPath("busybox")
	rig.Must(n.t, err)
	program, err := os.ReadFile(busybox)
	rig.Must(n.t, err)
	rig.Must(n.t, os.MkdirAll(dir+"/rootfs/bin", 0o755))
	rig.Must(n.t, os.WriteFile(dir+"/rootfs/bin/busybox", program, 0o755))
	n.Do(n.t, "runc", "spec", "--bundle", dir)
	data, err := os.ReadFile(dir + "/config.json")
	rig.Must(n.t, err)
	var spec map[string]any
	rig.Must(n.t, json.Unmarshal(data, &spec))
	process := spec["process"].(map[string]any)
	process["terminal"] = false
	spec["root"].(map[string]any)["path"] = dir + "/rootfs"
	process["args"] = []string{"/bin/busybox", "sh", "-c", opening}
	linux := spec["linux"].(map[string]any)
	linux["cgroupsPath"] = "/engine/" + id
	linux["resources"] = map[string]any{"devices": []any{map[string]any{"allow": true, "access": "rwm"}}}
	var nodes []any
	for i := range 8 {
		nodes = append(nodes, map[string]any{"type": "c", "path": fmt.Sprintf("/dev/nvidia%d", i), "major": 195, "minor": i, "fileMode": 0o666})
	}
	linux["devices"] = nodes
	edit(spec)
	data, err = json.Marshal(spec)
	rig.Must(n.t, err)
	rig.Must(n.t, os.WriteFile(dir+"/config.json", data, 0o600))
	return dir
}

// TestEngineContainers: under berth-runtime a container opens its lease's GPUs. Under another
// runtime it opens none, whatever its rules allow and whatever its uid is.
func TestEngineContainers(t *testing.T) {
	n := start(t)
	for _, runtime := range []string{"runc", "crun"} {
		for _, uid := range []int{0, 4711} {
			id := fmt.Sprintf("%s-%d", runtime, uid)
			t.Run(id, func(t *testing.T) {
				n := node{n.Node, t}
				asUser := func(spec map[string]any) {
					spec["process"].(map[string]any)["user"] = map[string]any{"uid": uid, "gid": uid}
				}
				dir := n.bundle(id, asUser)
				n.want("without berth", strings.TrimSpace(n.Do(t, runtime, "run", "--bundle", dir, id)), "")

				dir = n.bundle(id, func(spec map[string]any) {
					asUser(spec)
					spec["annotations"] = map[string]string{"berth.gpus": "2"}
				})
				conf := filepath.Join(t.TempDir(), "config.toml")
				rig.Must(t, os.WriteFile(conf, []byte(fmt.Sprintf("runtime = %q\nberth = %q\n", runtime, n.Berth)), 0o600))
				got := n.Do(t, "env", "BERTH_CONFIG="+conf, filepath.Dir(n.Berth)+"/berth-runtime", "run", "--bundle", dir, id)
				// Which two is open: the container before may still count as the holder of its own.
				if got := strings.ReplaceAll(strings.TrimSpace(got), "?", ""); len(got) != 2 {
					t.Errorf("with a lease of two GPUs it opens %q", got)
				}
			})
		}
	}
}

// TestHooks: under berth's hooks a container opens its lease's GPUs, as under the wrapper. precreate takes the lease before
// the container's cgroup exists.
func TestHooks(t *testing.T) {
	n := start(t)
	hook := filepath.Dir(n.Berth) + "/berth-hook"
	for _, runtime := range []string{"runc", "crun"} {
		for name, script := range map[string]string{
			"createRuntime": `exec "$1" run --bundle "$2" "$4"`,
			"precreate":     `"$3" precreate <"$2/config.json" >"$2/new" && mv "$2/new" "$2/config.json" && "$1" run --bundle "$2" "$4"`,
		} {
			t.Run(runtime+" "+name, func(t *testing.T) {
				n := node{n.Node, t}
				dir := n.bundle(runtime+"-"+name, func(spec map[string]any) {
					spec["annotations"] = map[string]string{"berth.gpus": "2"}
					hooks := map[string]any{}
					for _, stage := range []string{name, "poststop"} { // runtimes ignore precreate
						hooks[stage] = []any{map[string]any{"path": hook, "args": []string{"berth-hook", stage}}}
					}
					spec["hooks"] = hooks
				})
				got := n.Do(t, "sh", "-c", script, "sh", runtime, dir, hook, runtime+"-"+name)
				// Which two is open: the container before may still count as the holder of its own.
				if got := strings.ReplaceAll(strings.TrimSpace(got), "?", ""); len(got) != 2 {
					t.Errorf("with a lease of two GPUs it opens %q", got)
				}
			})
		}
	}
}

// TestLostLedger: the devices of a holder stay open to it while the ledger is lost, and no others.
func TestLostLedger(t *testing.T) {
	n := start(t)
	const script = `rm -rf /run/berth; "$1" guard on && echo on; "$1" discover --quiet; "$1" guard on && echo on; shift; exec "$@"`
	words := append([]string{n.Berth, "alloc", "2", "--", "sh", "-c", script, "sh", n.Berth}, user...)
	t.Cleanup(func() { n.Do(t, n.Berth, "repair") })
	n.want("a user in alloc", n.opens(words...), "01")
}

var (
	kills    = flag.Int("guard.kills", 40, "`commands` that TestKilled kills")
	killSeed = flag.Uint64("guard.seed", 1, "`seed` of what TestKilled draws")
)

// TestKilled: commands that are killed at any moment open no device to a process without a lease,
// and the next commands repair the guard's tables.
func TestKilled(t *testing.T) {
	n := start(t)
	busybox, err := filepath.Abs("../../.cache/image/busybox")
	rig.Must(t, err)
	draw := rand.New(rand.NewPCG(*killSeed, 0))
	for range *kills {
		words := [][]string{
			{"alloc", "2", "--", "sleep", "0.01"},
			{"run", "--rm", "--gpus", "1", busybox, "true"},
			{"guard", "on"},
			{"discover"},
		}[draw.IntN(4)]
		cmd := n.Command(n.Berth, words...)
		rig.Must(t, cmd.Start())
		time.Sleep(time.Duration(draw.IntN(80)) * time.Millisecond)
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		n.want("a user", n.opens(user...), "")
	}
	n.want("alloc afterwards", n.opens(n.Berth, "alloc", "--wait=1m", "all", "--"), "01234567")
	n.want("a user afterwards", n.opens(user...), "")
	if got := n.Do(t, n.Berth, "guard", "status", "--json"); !strings.Contains(got, `"leases": 0`) {
		t.Error(got)
	}
}

// TestNVML: NVML shows only GPUs whose nodes its process can open. Discovery finds each GPU all the same: where root
// needs a lease, and inside a lease. A user sees what discovery has found, and no GPU as lost.
func TestNVML(t *testing.T) {
	n := start(t)
	conf := filepath.Join(n.Dir, "deny.toml")
	rig.Must(t, os.WriteFile(conf, []byte("[guard]\nroot = \"deny\"\n"), 0o644))
	berth := []string{n.Berth, "--config", conf}
	n.Do(t, n.Berth, "--config", conf, "guard", "on")
	n.want("root", n.opens("env"), "")
	for what, words := range map[string][]string{
		"without a lease": berth,
		"with a lease":    slices.Concat(berth, []string{"alloc", "2", "--"}, berth),
	} {
		said := n.Run(t, n.Command(words[0], append(words[1:], "discover")...))
		if said.Code != 0 || !strings.Contains(said.Out, "8 GPUs") || strings.Contains(said.Out+said.Err, "lost") {
			t.Errorf("%s: %+v", what, said)
		}
		said = n.Run(t, n.Command(words[0], append(words[1:], "gpus")...))
		if said.Code != 0 || strings.Count(said.Out, "/80 GiB") != 8 || strings.Contains(said.Out+said.Err, "lost") {
			t.Errorf("%s: %+v", what, said)
		}
	}
	rig.StartProcess(t, n.Command(filepath.Dir(n.Berth)+"/berth-broker"))
	rig.WaitUntil(t, "the broker listens", func() bool {
		_, err := os.Stat(n.Path("/run/berth/broker.sock"))
		return err == nil
	})
	said := n.Run(t, n.Command(user[0], append(user[1:], n.Berth, "gpus")...))
	if said.Code != 0 || strings.Count(said.Out, "80 GiB") != 8 || strings.Contains(said.Out+said.Err, "lost") {
		t.Errorf("a user: %+v", said)
	}
	// That cgroup is root's alone.
	enter := append(user[:len(user):len(user)], "sh", "-c", "echo 0 >/sys/fs/cgroup/berth-nvml/cgroup.procs")
	if said := n.Run(t, n.Command(enter[0], enter[1:]...)); said.Code == 0 {
		t.Error("a user enters the cgroup in which every device is open")
	}
	if got := n.Do(t, n.Berth, "guard", "status"); !strings.Contains(got, "0 exempt cgroups") {
		t.Error(got)
	}
	n.Do(t, n.Berth, "guard", "off")
	n.Do(t, "test", "!", "-e", "/sys/fs/cgroup/berth-nvml")
}
