package wrapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/hook/entry"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// The wrapper ends in an exec, so each case runs in a process of its own: this
// test binary again, with a fake node that keeps its state in a directory.

const setupVariable = "WRAPPER_TEST_SETUP"

// setup is one case's world, for the test and for the process that it starts.
type setup struct {
	Dir string
	// Runtime replaces the script that stands for the real runtime.
	Runtime string
	// Cgroup is where the cgroup file system is said to be.
	Cgroup string
	// Concerned is the node's answer about specs without a request; of a container
	// without device rules it is always Guarded. The others are errors that it has.
	Concerned, Guarded, Unruly                               bool
	NodeErr, AcquireErr, PrepareErr, EncloseErr, RuntimesErr string
}

func TestMain(m *testing.M) {
	text := os.Getenv(setupVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread()
	var s setup
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		panic(err)
	}
	os.Exit(Run(context.Background(), Options{
		Args: os.Args, Env: os.Environ(), Self: "/proc/self/exe", Stderr: os.Stderr,
		Runtimes: func() ([]Runtime, error) {
			return []Runtime{{Name: "runc", Path: s.Runtime, Root: s.path("state")}}, failure(s.RuntimesErr)
		},
		Node:         func() (Node, error) { return &fakeNode{s}, failure(s.NodeErr) },
		Unconfigured: func() (Node, error) { return &fakeNode{s}, failure(s.NodeErr) },
		Trust:        func() (entry.Trust, error) { return entry.Trust{}, nil },
		Cgroup:       s.Cgroup,
	}))
}

func failure(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

type fakeNode struct{ setup }

func (n *fakeNode) CanReachAccelerator(s *specs.Spec, _ string) (bool, error) {
	if s.Linux == nil || s.Linux.Resources == nil {
		return n.Concerned || n.Guarded, nil
	}
	return n.Concerned, nil
}

func (n *fakeNode) CanLiftDeviceRules(s *specs.Spec, _ string) (bool, error) {
	return n.Unruly, nil
}

// Exempt knows the annotation alone.
func (n *fakeNode) IsExempt(s *specs.Spec, _ string) (bool, error) {
	return s.Annotations["berth.exempt"] != "", nil
}

// IdentifyDevices knows eight GPUs, whose indices are their minors.
func (n *fakeNode) IdentifyDevices(_ context.Context, nodes []specs.LinuxDevice) (all []gpu.Device, err error) {
	for _, d := range nodes {
		if d.Major == 195 && d.Minor < 8 {
			all = append(all, gpu.Device{UUID: fmt.Sprint("GPU-", d.Minor), Index: fmt.Sprint(d.Minor)})
		}
	}
	return all, nil
}

func (n *fakeNode) Acquire(_ context.Context, a ledger.Ask) (ledger.Lease, error) {
	n.say("acquire %s for %s", a.Request, a.Owner.Container)
	l := ledger.Lease{ID: "00000000000a", State: ledger.Reserved, Request: a.Request.String(), Owner: a.Owner}
	if n.AcquireErr != "" {
		return ledger.Lease{}, errors.New(n.AcquireErr)
	}
	var err error
	if l.Owner.Process, err = readOwnProcess(); err != nil {
		return ledger.Lease{}, err
	}
	return l, n.save(ledger.Status{Lease: l})
}

func (n *fakeNode) Prepare(_ context.Context, spec *specs.Spec, lease *ledger.Lease, root *os.File) ([]edits.Removal, error) {
	if lease == nil {
		n.say("guard %s", filepath.Base(root.Name()))
	} else {
		n.say("prepare %s %s", lease.ID, filepath.Base(root.Name()))
		spec.Annotations[LeaseAnnotation] = lease.ID
	}
	spec.Process.Env = append(spec.Process.Env, "PREPARED=1")
	return []edits.Removal{edits.Remark("a note")}, failure(n.PrepareErr)
}

func (n *fakeNode) OuterCgroupPath(s *specs.Spec, own string, systemd, leased bool) (string, bool, error) {
	able := s.Process.Capabilities != nil && slices.Contains(s.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
	name := "outer"
	if systemd {
		name = strings.TrimSuffix(filepath.Base(filepath.Dir(own)), ".slice") + "-outer.slice"
	}
	return filepath.Join(filepath.Dir(own), name), able, nil
}

func (n *fakeNode) CreateOuterCgroup(_ context.Context, outer string, spec *specs.Spec) error {
	n.say("enclose %s for %s", outer, spec.Linux.CgroupsPath)
	return failure(n.EncloseErr)
}

func (n *fakeNode) RemoveOuterCgroup(_ context.Context, outer string) error {
	n.say("unclose %s", outer)
	return nil
}

func (n *fakeNode) LogRemovals(event, lease string, _ ledger.Owner, removed []edits.Removal) {
	var texts []string
	for _, r := range removed {
		texts = append(texts, r.String())
	}
	n.say("tell %s %s %s", event, lease, strings.Join(texts, "; "))
}

func (n *fakeNode) Release(_ context.Context, id string) error {
	n.say("release %s", id)
	return os.Remove(n.path("lease.json"))
}

func (n *fakeNode) ReleaseIfDead(ctx context.Context, id string) error {
	leases, err := n.Leases()
	if err != nil {
		return err
	}
	if len(leases) == 1 && leases[0].ID == id && leases[0].Live {
		return ledger.ErrLive
	}
	return n.Release(ctx, id)
}

func (n *fakeNode) Leases() ([]ledger.Status, error) {
	data, err := os.ReadFile(n.path("lease.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var s ledger.Status
	err = json.Unmarshal(data, &s)
	s.Live = syscall.Kill(s.Owner.Process.PID, 0) == nil
	s.Making = s.Live && s.State == ledger.Reserved
	return []ledger.Status{s}, err
}

func (n *fakeNode) ReadLeases() (all []ledger.Lease, err error) {
	leases, err := n.Leases()
	for _, s := range leases {
		all = append(all, s.Lease)
	}
	return all, err
}

func (s setup) path(name string) string { return filepath.Join(s.Dir, name) }

func (s setup) save(l ledger.Status) error {
	data, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return os.WriteFile(s.path("lease.json"), data, 0o600)
}

func (s setup) say(format string, args ...any) {
	f, err := os.OpenFile(s.path("calls"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(f, format+"\n", args...)
	if err := f.Close(); err != nil {
		panic(err)
	}
}

// script stands for the real runtime. It says how it was called and as which
// process, copies what it would read, and behaves as the files in its directory
// say: with an exit code, deleting its state or not.
const script = `#!/bin/sh
cd DIR
echo "runtime $*" >>calls
echo $$ >pid
cp bundle/config.json seen.json
test -e wait && { trap 'exit 7' TERM; touch ready; while :; do sleep 0.01; done; }
case "$*" in *delete*) test -e stays || rm -rf state/c1;; esac
exit $(cat exit 2>/dev/null || echo 0)
`

const original = `{"ociVersion":"1.0.2", "root":{"path":"rootfs"},"process":{"env":["A=1"]},"linux":{"cgroupsPath":"/engine/c1"},"annotations":{"berth.gpus":"2"}}`

// world makes a bundle with the given config.json and a runtime.
func world(t *testing.T, config string) *setup {
	t.Helper()
	s := &setup{Dir: t.TempDir()}
	s.Runtime = s.path("runtime")
	for _, dir := range []string{"bundle/rootfs", "state"} {
		if err := os.MkdirAll(s.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.put(t, "bundle/config.json", config)
	s.put(t, "runtime", strings.ReplaceAll(script, "DIR", s.Dir))
	return s
}

func (s setup) put(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(s.path(name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.path(name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// get returns a file's content, "" if there is none.
func (s setup) get(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(s.path(name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(data)
}

func (s setup) has(name string) bool {
	_, err := os.Lstat(s.path(name))
	return err == nil
}

// result of one call of the wrapper.
type result struct {
	code, pid int
	stderr    string
}

func (s setup) command(t *testing.T, line string) *exec.Cmd {
	t.Helper()
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], strings.Fields(line)...)
	cmd.Env = append(os.Environ(), setupVariable+"="+string(data))
	cmd.Dir = s.Dir
	return cmd
}

func (s setup) run(t *testing.T, line string) result {
	t.Helper()
	cmd := s.command(t, line)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), cmd.Process.Pid, stderr.String()}
}

// calls returns what has happened since the last call of it, in order.
func (s setup) calls(t *testing.T) string {
	t.Helper()
	text := s.get(t, "calls")
	if err := os.RemoveAll(s.path("calls")); err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ")
}
