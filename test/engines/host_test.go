package engines

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
)

// host is a simulated server with engines.
type host struct {
	*rack.Host    // nil until it is started
	suite, cgroup string
	dir           string // below shared.Dir: the same inside and outside
	ready         map[string]bool
}

var hosts = struct {
	sync.Mutex
	started map[string]*host
}{started: map[string]*host{}}

// start returns the host of a suite of Debian with a version of cgroups, which all tests share.
func start(t *testing.T, suite, cgroup string) *host {
	t.Helper()
	return startFor(t, "", suite, cgroup)
}

// startFor returns a host that only the tests of one purpose share; they may kill its engines.
func startFor(t *testing.T, purpose, suite, cgroup string) *host {
	t.Helper()
	return startWith(t, rack.Options{Cgroup: cgroup}, purpose, suite)
}

// startWith is startFor with options of the host's.
func startWith(t *testing.T, o rack.Options, purpose, suite string) *host {
	t.Helper()
	hosts.Lock()
	defer hosts.Unlock()
	key := suite + "-" + o.Cgroup + purpose
	if h, ok := hosts.started[key]; ok {
		return h
	}
	h := &host{
		suite: suite, cgroup: o.Cgroup, dir: filepath.Join(shared.Dir, key), ready: map[string]bool{},
	}
	rig.Must(t, os.MkdirAll(h.dir, 0o755))
	hosts.started[key] = h
	rig.Must(t, h.boot(o))
	h.configure(t)
	return h
}

// boot starts the host on the suite's root file system.
func (h *host) boot(o rack.Options) (err error) {
	o.Tree, o.Simnode, o.Share, o.Key = trees[h.suite], simnode, shared.Dir, filepath.Base(h.dir)
	h.Host, err = rack.Start(o)
	return err
}

// configure installs berth as an admin would.
func (h *host) configure(t *testing.T) {
	t.Helper()
	text := fmt.Sprintf("runtime = 'runc'\nberth = %q\n[policy]\npodman_annotation = true\nfeatures = ['gdrcopy', 'gds']\ncdi = ['vendor.example/nic']\n", shared.Berth)
	h.write(t, "/etc/berth/config.toml", text)
	h.write(t, "/etc/cdi/vendor.json", vendor)
	h.do(t, shared.Berth, "discover", "--quiet")
	h.do(t, shared.Berth, "cdi", "generate", "--nvidia")
}

// stop ends the host with all that runs in it.
func (h *host) stop() error {
	if h.Host == nil {
		return nil
	}
	return h.Stop()
}

// command is exec.Command inside the host.
func (h *host) command(words ...string) *exec.Cmd { return h.Command(words...) }

// said is the result of a command.
type said struct {
	code     int
	out, err string
}

// run runs a command inside the host to its end. Background processes of the command keep no pipe
// open.
func (h *host) run(t *testing.T, words ...string) said {
	t.Helper()
	out, errs := file(t), file(t)
	cmd := h.command(words...)
	cmd.Stdout, cmd.Stderr = out, errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", words, err)
	}
	return said{cmd.ProcessState.ExitCode(), content(t, out), content(t, errs)}
}

// do runs a command that has to succeed, and returns its output.
func (h *host) do(t *testing.T, words ...string) string {
	t.Helper()
	got := h.run(t, words...)
	if got.code != 0 {
		t.Fatalf("%s: exit code %d: %s%s", strings.Join(words, " "), got.code, got.out, got.err)
	}
	return got.out
}

// write writes a file of the host.
func (h *host) write(t *testing.T, path, text string) {
	t.Helper()
	h.do(t, "sh", "-c", `mkdir -p "${1%/*}" && printf %s "$0" >"$1"`, text, path)
}

// daemon starts an engine that runs until the host ends.
func (h *host) daemon(t *testing.T, words ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(h.dir, filepath.Base(words[0])+".log"))
	rig.Must(t, err)
	defer log.Close()
	cmd := h.command(words...)
	cmd.Stdout, cmd.Stderr = log, log
	rig.Must(t, cmd.Start())
	go func() { _ = cmd.Wait() }() // it is killed in the end
}

// until waits for a command to succeed.
func (h *host) until(t *testing.T, words ...string) {
	t.Helper()
	var last said
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if last = h.run(t, words...); last.code == 0 {
			return
		}
	}
	logs, _ := filepath.Glob(h.dir + "/*.log")
	for _, log := range logs {
		if text, err := os.ReadFile(log); err == nil {
			t.Logf("%s:\n%s", log, text)
		}
	}
	t.Fatalf("%s: exit code %d: %s%s", strings.Join(words, " "), last.code, last.out, last.err)
}

// once calls f once for a host.
func (h *host) once(what string, do func()) {
	if !h.ready[what] {
		do()
		h.ready[what] = true
	}
}

// lease has the needed fields of one lease of berth leases --json.
type lease struct {
	ID      string `json:"id"`
	Live    bool   `json:"live"`
	Devices []struct {
		UUID string `json:"uuid"`
	} `json:"devices"`
	Request string `json:"request"`
	Owner   struct {
		EntryPoint string `json:"door"`
		Container  string `json:"container"`
	} `json:"owner"`
}

// leases lists the ledger's leases, also those of ended holders.
func (h *host) leases(t *testing.T) []lease {
	t.Helper()
	var view struct{ Leases []lease }
	rig.Must(t, json.Unmarshal([]byte(h.do(t, shared.Berth, "leases", "--json")), &view))
	return view.Leases
}

// live lists the leases whose holders are alive.
func (h *host) live(t *testing.T) []lease {
	t.Helper()
	return slices.DeleteFunc(h.leases(t), func(l lease) bool { return !l.Live })
}

// footprint returns what containers may leave on a host: mounts, cgroups, runtimes' state.
func (h *host) footprint(t *testing.T) []string {
	t.Helper()
	const look = `cut -d ' ' -f 4,5 /proc/self/mountinfo
find /sys/fs/cgroup -type d
for dir in /run/runc /run/crun /run/docker/runtime-*/moby /run/containerd/runc/* /run/containerd/io.containerd.runtime.v2.task/*; do
	[ ! -d "$dir" ] || find "$dir" -mindepth 1 -maxdepth 1
done`
	lines := strings.Split(strings.TrimSpace(h.do(t, "sh", "-c", look)), "\n")
	slices.Sort(lines)
	return lines
}

func file(t *testing.T) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	rig.Must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func content(t *testing.T, f *os.File) string {
	t.Helper()
	data, err := os.ReadFile(f.Name())
	rig.Must(t, err)
	return string(data)
}
