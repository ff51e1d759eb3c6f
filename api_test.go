package berth_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/test/simnode/sim"
)

// roleVariable makes the test binary one of the programs of the tests:
//
//	node CGROUP PROGRAM RUNTIME DIR   a simulated server, which runs PROGRAM
//	runner RUNTIME DIR                a job runner, which prints its account as JSON
//	successor RUNTIME DIR             a job runner that starts and kills another one, and
//	                                  prints an account of that one's container
//	killed RUNTIME DIR                the job runner that is killed
const roleVariable = "BERTH_API_TEST"

func TestMain(m *testing.M) {
	if was, err := sim.Loader(os.Args); was {
		exitWith(err)
	}
	switch words := strings.Fields(os.Getenv(roleVariable)); {
	case len(words) == 5 && words[0] == "node":
		exitWith(becomeNode(words[1], words[2:]))
	case len(words) == 3 && words[0] == "runner":
		exitWith(printAccount(jobRunner(words[1], words[2])))
	case len(words) == 3 && words[0] == "successor":
		exitWith(printAccount(runAfterKilledRunner(words[1], words[2])))
	case len(words) == 3 && words[0] == "killed":
		exitWith(runUntilKilled(words[1], words[2]))
	}
	os.Exit(m.Run())
}

func exitWith(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "api test:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func printAccount(a account, err error) error {
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}

func becomeNode(cgroup string, program []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.Setenv(roleVariable, strings.Join(program, " ")); err != nil {
		return err
	}
	return sim.Exec("dgx-h100", sim.Options{Cgroup: cgroup, Driver: "stub"}, []string{self}, os.Environ())
}

// account is what a job runner has observed.
type account struct {
	Devices []string // of its lease, by UUID
	Saw     []string // by the container
	// Busy is the error of a request for the whole node while the container runs, Early
	// that of an attempt to release the lease.
	Busy, Early string
	Held, Left  int // leases while the container runs, and after its end
	All         int // devices that can be leased after the end
}

// openNode opens the machine on which the job runner runs.
func openNode(dir string) (*berth.Node, error) {
	conf, err := berth.LoadConfig(berth.ConfigPath)
	if err != nil {
		return nil, err
	}
	conf.Berth = filepath.Join(dir, "berth")
	return berth.Open(conf)
}

// jobRunner uses package berth as a program outside of this module would: it makes
// its own spec, and runs its own runtime.
func jobRunner(runtime, dir string) (a account, err error) {
	node, err := openNode(dir)
	if err != nil {
		return a, err
	}
	ctx := context.Background()
	if err := a.runJob(ctx, node, runtime, dir); err != nil {
		return a, err
	}
	after, err := node.Leases()
	if err != nil {
		return a, err
	}
	a.Left = len(after)
	all, err := acquire(ctx, node, "all", ledger.Owner{EntryPoint: "api", Container: "next"})
	if err != nil {
		return a, err
	}
	a.All = len(all.Devices)
	return a, node.Release(ctx, all.ID)
}

func acquire(ctx context.Context, node *berth.Node, words string, owner ledger.Owner) (ledger.Lease, error) {
	request, err := request.Parse(words)
	if err != nil {
		return ledger.Lease{}, err
	}
	return node.Acquire(ctx, ledger.Ask{Owner: owner, Request: request})
}

// runJob runs a container with two GPUs.
func (a *account) runJob(ctx context.Context, node *berth.Node, runtime, dir string) (err error) {
	id := fmt.Sprint("berth-api-test-", os.Getpid())
	lease, err := acquire(ctx, node, "h100:2", ledger.Owner{EntryPoint: "api", Container: id, Bundle: dir, Cgroup: "/" + id})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Release(ctx, lease.ID)) }()
	for _, d := range lease.Devices {
		a.Devices = append(a.Devices, d.UUID)
	}
	if err := writeBundle(ctx, node, lease, dir, "/"+id); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, runtime, "--root", filepath.Join(dir, "state"), "run", "--bundle", dir, id)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = a.observeRunning(ctx, node, lease, out)
	return errors.Join(err, in.Close(), cmd.Wait()) // its end of input ends the container
}

// observeRunning fills in the account while the container runs.
func (a *account) observeRunning(ctx context.Context, node *berth.Node, lease ledger.Lease, out io.Reader) error {
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "done"; {
		a.Saw = append(a.Saw, lines.Text())
	}
	held, err := node.Leases()
	if err != nil {
		return err
	}
	a.Held = len(held)
	if a.Busy, err = requestWholeNode(ctx, node); err != nil {
		return err
	}
	if err := node.ReleaseIfDead(ctx, lease.ID); errors.Is(err, ledger.ErrLive) {
		a.Early = "refused"
	}
	return nil
}

// requestWholeNode requests the whole node, and returns the error that it is busy.
func requestWholeNode(ctx context.Context, node *berth.Node) (string, error) {
	_, err := acquire(ctx, node, "all", ledger.Owner{EntryPoint: "api", Container: "greedy"})
	if !errors.Is(err, ledger.ErrBusy) {
		return "", fmt.Errorf("of all GPUs, when two are leased: %w", err)
	}
	why, _, _ := strings.Cut(err.Error(), ";")
	return why, nil
}

// TestJobRunner: a program that uses package berth only runs a container that
// can open its leased GPUs only, and releases them.
func TestJobRunner(t *testing.T) {
	testutil.NeedRoot(t, "cc", "runc", "crun", "busybox")
	bin := buildBerth(t)
	for _, p := range testutil.Pairs(t) {
		t.Run(p.Cgroup+" "+p.Runtime, func(t *testing.T) {
			got := inNode(t, "runner", p.Cgroup, p.Runtime, bin)
			want := expected(t, got.Devices)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func buildBerth(t *testing.T) string {
	t.Helper()
	openBuildInputs(t)
	dir := t.TempDir()
	testutil.Must(t, testutil.BuildPrograms(dir, "berth", "berth-nvml", "berth-hook"))
	return filepath.Join(dir, "berth")
}

// openBuildInputs opens the sources of the command, so that go test caches a result only for
// the same sources.
func openBuildInputs(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.Contains([]string{".cache", ".git", "bin"}, path) {
			return filepath.SkipDir
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // an editor's file, gone by now
		t.Fatal(err)
	}
}

// expected is the account of a job runner whose lease is of these devices, which
// have to be two of the node's.
func expected(t *testing.T, devices []string) account {
	t.Helper()
	p, err := sim.LookupProfile("dgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	nodes := []string{"nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"}
	for i, g := range p.GPUs {
		if slices.Contains(devices, p.UUID(i)) {
			nodes = append(nodes, fmt.Sprint("nvidia", g.Minor))
		}
	}
	if len(nodes) != 5 || len(devices) != 2 {
		t.Fatalf("the lease is of %v", devices)
	}
	slices.Sort(nodes)
	a := account{Devices: devices, Busy: "all: 8 asked, 6 of 8 free", Early: "refused", Held: 1, All: 8}
	for _, dir := range []string{"/host/dev/", "/dev/"} {
		for _, n := range nodes {
			a.Saw = append(a.Saw, "open "+dir+n)
		}
	}
	a.Saw = append(a.Saw, "BERTH_DEVICES="+strings.Join(devices, ",")+" NVIDIA_VISIBLE_DEVICES=void", "/usr/local/nvidia/lib64/libcuda.so.1")
	return a
}

// inNode starts a node with a job runner in it, and returns its account.
func inNode(t *testing.T, program, cgroup, runtime, bin string) (a account) {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(makeRoot(filepath.Join(dir, "rootfs")), os.Symlink(bin, filepath.Join(dir, "berth")),
		os.Symlink(bin+"-hook", filepath.Join(dir, "berth-hook"))); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleVariable+"="+strings.Join([]string{"node", cgroup, program, runtime, dir}, " "))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &a)
	}
	if err != nil {
		t.Fatalf("%v: %s%s", err, out, &stderr)
	}
	return a
}
