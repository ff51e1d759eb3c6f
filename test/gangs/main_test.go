// Package gangs holds black-box tests of gangs: ranks that start together, find each
// other as plain scripts expect it, fail together, and see nothing of any other gang.
//
// They run real PyTorch and Open MPI of Debian on simulated servers, in a network
// namespace of the test's own, which is such a server's network. It takes a root file
// system of a gigabyte, so make test-gangs alone runs them.
package gangs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// asked is set by make test-gangs.
const asked = "BERTH_TEST_GANGS"

// apart is set in the network namespace of the test's own.
const apart = "BERTH_GANGS_APART"

// The images, and the scripts that they run, which are at /mnt inside.
var (
	torch, busybox, scripts string
	shared                  *rig.Rig
)

func TestMain(m *testing.M) {
	tests := len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "-test.") // and no part of a node's
	switch {
	case tests && os.Getenv(asked) != "1":
		os.Exit(m.Run()) // each test says that it is skipped
	case tests && os.Getenv(apart) == "":
		if err := makeImages(); err != nil {
			fmt.Fprintln(os.Stderr, "gangs:", err)
			os.Exit(1)
		}
		os.Exit(intoNetwork())
	}
	rig.Main(m, setup)
}

// intoNetwork runs the tests once more, on a network that has an address and a way out
// to nowhere.
func intoNetwork() int {
	const network = `ip link set lo up &&
		ip link add up0 type veth peer name up1 &&
		ip addr add 192.0.2.10/24 dev up0 && ip link set up0 up && ip link set up1 up &&
		ip route add default via 192.0.2.1 && exec "$0" "$@"`
	cmd := exec.Command("unshare", append([]string{"--net", "sh", "-c", network}, os.Args...)...)
	cmd.Env = append(os.Environ(), apart+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// It ends with this process, which go test may kill.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, "gangs:", err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// makeImages has the images made, which takes the machine's own network.
func makeImages() error {
	if out, err := exec.Command("./root.sh").CombinedOutput(); err != nil {
		return fmt.Errorf("make the root of PyTorch and Open MPI: %w: %s", err, out)
	}
	return rig.MakeImages()
}

func setup(r *rig.Rig) error {
	shared = r
	for path, to := range map[string]*string{"../../.cache/gangs/root": &torch, "../../.cache/image/busybox": &busybox, "testdata": &scripts} {
		abs, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		*to = abs
	}
	return nil
}

// node is a simulated server with berth's programs.
type node struct {
	*rig.Node
	seen *ids
}

var nodes = struct {
	sync.Mutex
	started map[string]node
}{started: map[string]node{}}

// sharedServer starts a node for the tests that want the same one.
func sharedServer(t *testing.T, profile, cgroup string) node {
	t.Helper()
	if os.Getenv(asked) != "1" {
		t.Skip("make test-gangs runs this, with a root file system of PyTorch and Open MPI")
	}
	nodes.Lock()
	defer nodes.Unlock()
	n, ok := nodes.started[profile+cgroup]
	if !ok {
		n = startOwnServer(t, profile, cgroup)
		nodes.started[profile+cgroup] = n
	}
	return n
}

// startOwnServer starts a node that no other test has.
func startOwnServer(t *testing.T, profile, cgroup string) node {
	t.Helper()
	n, err := shared.Start(profile, cgroup)
	rig.Must(t, err)
	seen := &ids{known: map[string]bool{}}
	go seen.watchTasks(n.Path("/var/lib/berth/tasks"))
	return node{n, seen}
}

// everywhere runs a test on each version of cgroups.
func everywhere(t *testing.T, test func(*testing.T, node)) {
	t.Helper()
	for _, cgroup := range []string{"v1", "v2"} {
		t.Run(cgroup, func(t *testing.T) { test(t, sharedServer(t, "dgx-h100", cgroup)) })
	}
}

// mustRun runs a verb that has to succeed, and returns what it printed.
func (n node) mustRun(t *testing.T, words ...string) string {
	t.Helper()
	said := n.RunBerth(t, words...)
	if said.Code != 0 {
		t.Fatalf("berth %q: exit code %d\n%s%s", words, said.Code, said.Out, said.Err)
	}
	return said.Out
}

// running is a berth run in the foreground.
type running struct {
	rig.Process
	out, errs *os.File
}

// startRun begins a run, which ends with the test.
func (n node) startRun(t *testing.T, words ...string) *running {
	t.Helper()
	dir := t.TempDir()
	cmd, r := n.Command(n.Berth, append([]string{"run"}, words...)...), &running{}
	for name, to := range map[string]**os.File{"out": &r.out, "err": &r.errs} {
		f, err := os.Create(filepath.Join(dir, name))
		rig.Must(t, err)
		t.Cleanup(func() { f.Close() })
		*to = f
	}
	cmd.Stdout, cmd.Stderr = r.out, r.errs
	r.Process = rig.StartProcess(t, cmd)
	return r
}

// readOutput returns all that the run has written.
func (r *running) readOutput(t *testing.T) string {
	t.Helper()
	var all []byte
	for _, f := range []*os.File{r.out, r.errs} {
		data, err := os.ReadFile(f.Name())
		rig.Must(t, err)
		all = append(all, data...)
	}
	return string(all)
}

// makeMeetingDir returns a directory that all containers of a test share with it, at /meet.
func makeMeetingDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "meet")
	rig.Must(t, os.Mkdir(dir, 0o777))
	rig.Must(t, os.Chmod(dir, 0o777)) // whatever the mask
	return dir
}

// awaitFile waits until a run has put a file into a meeting, and returns it.
func (r *running) awaitFile(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	rig.WaitUntil(t, name, func() bool {
		_, err := os.Stat(path)
		return err == nil || r.HasEnded()
	})
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("it ended before it said %s:\n%s", name, r.readOutput(t))
	}
	return string(data)
}

// rankLines are those of one rank: what follows its name and a mark.
func rankLines(text, rank string) (found []string) {
	for _, line := range strings.Split(text, "\n") {
		if before, rest, ok := strings.Cut(line, rank); ok && !strings.Contains(before, " ") {
			found = append(found, strings.TrimLeft(rest, "]|: \t"))
		}
	}
	return found
}
