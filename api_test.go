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
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/test/simnode/sim"
)

// The test binary is also what plays the other parts, by the words of this variable:
//
//	node CGROUP RUNTIME DIR   becomes a simulated server, and there
//	runner RUNTIME DIR        a job runner, which prints an account as JSON
const part = "BERTH_API_TEST"

func TestMain(m *testing.M) {
	if was, err := sim.Loader(os.Args); was {
		exitWith(err)
	}
	switch words := strings.Fields(os.Getenv(part)); {
	case len(words) == 4 && words[0] == "node":
		exitWith(becomeNode(words[1], words[2], words[3]))
	case len(words) == 3 && words[0] == "runner":
		exitWith(jobRunner(words[1], words[2]))
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

func becomeNode(cgroup, runtime, dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.Setenv(part, strings.Join([]string{"runner", runtime, dir}, " ")); err != nil {
		return err
	}
	return sim.Exec("dgx-h100", sim.Options{Cgroup: cgroup, Driver: "stub"}, []string{self}, os.Environ())
}

// account is what a job runner saw.
type account struct {
	Devices []string // of its lease, by UUID
	Saw     []string // by the container
	// Busy is what a second request for the whole node was answered meanwhile, and
	// Early an attempt to give the lease back while the container runs.
	Busy, Early string
	Held, Left  int // leases meanwhile, and after the end
	All         int // devices that can be leased after the end
}

// jobRunner uses package berth as a program outside of this module would: it makes
// its own spec, and runs its own runtime.
func jobRunner(runtime, dir string) error {
	conf, err := berth.LoadConfig(berth.ConfigPath)
	if err != nil {
		return err
	}
	conf.Berth = filepath.Join(dir, "berth")
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	ctx := context.Background()
	var a account
	if err := a.job(ctx, node, runtime, dir); err != nil {
		return err
	}
	after, err := node.Leases()
	if err != nil {
		return err
	}
	a.Left = len(after)
	all, err := acquire(ctx, node, "all", ledger.Owner{Door: "api", Container: "next"})
	if err != nil {
		return err
	}
	a.All = len(all.Devices)
	return errors.Join(node.Release(ctx, all.ID), json.NewEncoder(os.Stdout).Encode(a))
}

func acquire(ctx context.Context, node *berth.Node, words string, owner ledger.Owner) (ledger.Lease, error) {
	request, err := gpu.ParseRequest(words)
	if err != nil {
		return ledger.Lease{}, err
	}
	return node.Acquire(ctx, ledger.Ask{Owner: owner, Request: request})
}

// job is one container with two GPUs.
func (a *account) job(ctx context.Context, node *berth.Node, runtime, dir string) (err error) {
	id := fmt.Sprint("berth-api-test-", os.Getpid())
	lease, err := acquire(ctx, node, "h100:2", ledger.Owner{Door: "api", Container: id, Bundle: dir, Cgroup: "/" + id})
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
	err = a.meanwhile(ctx, node, lease, out)
	return errors.Join(err, in.Close(), cmd.Wait()) // its end of input ends the container
}

// meanwhile is what is seen while the container runs.
func (a *account) meanwhile(ctx context.Context, node *berth.Node, lease ledger.Lease, out io.Reader) error {
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "done"; {
		a.Saw = append(a.Saw, lines.Text())
	}
	held, err := node.Leases()
	if err != nil {
		return err
	}
	a.Held = len(held)
	_, err = acquire(ctx, node, "all", ledger.Owner{Door: "api", Container: "greedy"})
	if !errors.Is(err, ledger.ErrBusy) {
		return fmt.Errorf("of all GPUs, when two are leased: %w", err)
	}
	a.Busy = strings.Split(err.Error(), ";")[0]
	if err := node.ReleaseIfDead(ctx, lease.ID); errors.Is(err, ledger.ErrLive) {
		a.Early = "refused"
	}
	return nil
}

// looks prints what the container can open, what it was told, and what else it has,
// and waits for the end of its input.
const looks = `for n in /host/dev/nvidia* /host/dev/nvidia-caps/* /host/dev/infiniband/uverbs* /dev/nvidia*; do
	test -c $n || continue
	case $( (: <$n) 2>&1) in *"not permitted"*) ;; *) echo open $n;; esac
done
mknod /tmp/node c 195 0 2>/dev/null && echo made a node
echo BERTH_DEVICES=$BERTH_DEVICES NVIDIA_VISIBLE_DEVICES=$NVIDIA_VISIBLE_DEVICES
ls /usr/local/nvidia/lib*/libcuda.so.1
echo done; read x; exit 0`

// writeBundle makes config.json: a container that may do everything, as far as its
// author is concerned, prepared for the lease.
func writeBundle(ctx context.Context, node *berth.Node, lease ledger.Lease, dir, cgroup string) error {
	all := []string{"CAP_MKNOD", "CAP_DAC_OVERRIDE", "CAP_FOWNER"}
	spec := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{
			Args: []string{"/bin/busybox", "sh", "-c", looks}, Env: []string{"PATH=/bin"}, Cwd: "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/host/dev", Type: "bind", Source: "/dev", Options: []string{"rbind"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: cgroup,
			Namespaces:  []specs.LinuxNamespace{{Type: "pid"}, {Type: "mount"}, {Type: "ipc"}, {Type: "uts"}},
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}},
		},
	}
	root, err := berth.OpenRoot(filepath.Join(dir, "rootfs"))
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := node.Prepare(ctx, spec, &lease, root); err != nil {
		return err
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600)
}

// TestJobRunner: a program that knows package berth alone runs a container that
// opens its own GPUs and nobody else's, and gives them back.
func TestJobRunner(t *testing.T) {
	needs(t, "cc", "runc", "crun", "busybox")
	watch(t)
	bin := filepath.Join(t.TempDir(), "berth")
	if out, err := exec.Command("go", "build", "-o", bin, "./cmd/berth").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, cgroup := range []string{"v1", "v2"} {
		for _, runtime := range []string{"runc", "crun"} {
			t.Run(cgroup+" "+runtime, func(t *testing.T) {
				got := runJobs(t, cgroup, runtime, bin)
				want := expected(t, got.Devices)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}

// watch lets go test see what the command is built from: a cached result is then one
// of the same sources.
func watch(t *testing.T) {
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

// needs skips on a machine that can't run the test, unless it was asked for.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root")
	}
	for _, name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	switch {
	case len(missing) == 0:
	case os.Getenv("BERTH_TEST_ROOT") == "1":
		t.Fatalf("needs %v", missing)
	default:
		t.Skipf("needs %v", missing)
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

// runJobs starts a node with a job runner in it.
func runJobs(t *testing.T, cgroup, runtime, bin string) (a account) {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(makeRoot(filepath.Join(dir, "rootfs")), os.Symlink(bin, filepath.Join(dir, "berth"))); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), part+"="+strings.Join([]string{"node", cgroup, runtime, dir}, " "))
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

// makeRoot is a root file system with busybox and nothing else.
func makeRoot(dir string) error {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, d := range []string{"bin", "tmp", "proc", "dev", "host/dev"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"mknod", "ls", "test"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", name)); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "bin/busybox"), program, 0o755)
}
