package launcher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/tasks"
	"github.com/berth-gpu/berth/test/image/oci"
)

// job is what a launch in a process of its own is told. Tests launch in other
// processes because a launch takes over signals, is killed, or needs its own
// view of the machine's cgroups.
type job struct {
	Cgroups  string            // "v1" or "v2"
	Devices  string            // "", "free", "busy", "unprepared": what the fake DeviceSource does
	Record   string            // file in which the fake DeviceSource records its calls
	CPUsNear string            // what the fake DeviceSource says of the devices' CPUs
	Programs map[string]string // what it says of the programs that come with them
	Wait     time.Duration     // how long Devices "ledger" are waited for; negative: for ever

	Image, Runtime, State, Data string
	Parent                      string
	Name                        string
	Interactive                 bool
	spec.Settings
	Lasting Lifecycle

	// Detach: descriptor 3 becomes the launch's status. Adopt: nothing is launched, and
	// tasks without a monitor get one. Sweep: only what a launch begins with is done.
	Detach, Adopt, Sweep bool
	// Exec is the id of a task in which the command is run.
	Exec string
	// Null is what this process sees as /dev/null.
	Null string
}

const jobVariable = "BERTH_TEST_JOB"

func TestMain(m *testing.M) {
	if text := os.Getenv(jobVariable); text != "" {
		os.Exit(runJob(text))
	}
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

func runJob(text string) int {
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		err = errors.Join(viewCgroups(j.Cgroups), viewNull(j.Null))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "test:", err)
		return 99
	}
	o := Options{
		Image: j.Image, Runtime: j.Runtime, State: j.State, Data: j.Data, Parent: j.Parent,
		Name: j.Name, Interactive: j.Interactive, Settings: j.Settings, Lifecycle: j.Lasting,
	}
	if j.Detach {
		o.Detach = &Detach{Status: os.NewFile(3, "status")}
	}
	if j.Devices != "" {
		o.Devices = &fakeDevices{job: j}
	}
	if j.Devices == "ledger" {
		o.Devices = &ledgerDevices{l: ledger.Open(ledger.Options{Dir: j.State, Events: j.Data}), wait: j.Wait}
		o.Request, err = request.Parse("1")
	}
	code := 0
	switch {
	case err != nil:
	case j.Exec != "":
		code, err = execJob(j, o.taskStore())
	case j.Adopt:
		err = control.Adopt(context.Background(), o.taskStore(), j.Lasting.Monitor)
	case j.Sweep:
		o = o.withDefaults()
		var h *host
		if h, err = newHost(o); err == nil {
			err = control.Sweep(context.Background(), o.taskStore(), h.Cgroups, o.Monitor, o.Retention)
		}
	default:
		code, err = Run(context.Background(), o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth:", err)
	}
	return code
}

func execJob(j job, store tasks.Store) (int, error) {
	t, err := store.Task(j.Exec)
	if err != nil {
		return 0, err
	}
	return control.Exec(context.Background(), store, t, control.ExecOptions{
		Command: j.Command, Dir: j.Dir, Terminal: j.Terminal, Interactive: j.Interactive, Detach: j.Detach,
	})
}

// viewNull makes this process's mount namespace show another null.
func viewNull(path string) error {
	if path == "" {
		return nil
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount(path, "/dev/null", "", unix.MS_BIND, "")
}

// viewCgroups makes this process's mount namespace show one version alone.
func viewCgroups(version string) error {
	const at = "/sys/fs/cgroup"
	if version == "" {
		return nil
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
		return err
	}
	if version == "v2" {
		return unix.Mount("none", at, "cgroup2", 0, "")
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for line := range strings.Lines(string(own)) {
		controllers := strings.Split(line, ":")[1]
		if controllers == "" {
			continue
		}
		name := strings.TrimPrefix(controllers, "name=")
		options := controllers
		if name != controllers {
			options = "none," + controllers
		}
		dir := filepath.Join(at, name)
		if err := errors.Join(os.Mkdir(dir, 0o755), unix.Mount(name, dir, "cgroup", 0, options)); err != nil {
			return err
		}
	}
	return nil
}

// fakeDevices hands out a device that doesn't exist and records what it is asked.
type fakeDevices struct{ job job }

func (f *fakeDevices) record(line string) error {
	file, err := os.OpenFile(f.job.Record, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(file, line)
	return errors.Join(err, file.Close())
}

func (f *fakeDevices) Programs(context.Context, []string) (map[string]string, error) {
	return f.job.Programs, nil
}

func (f *fakeDevices) Acquire(_ context.Context, o ledger.Owner, _ request.Request, _ func()) (ledger.Lease, error) {
	if f.job.Devices == "busy" {
		return ledger.Lease{}, fmt.Errorf("2 of 2 in use: %w", match.ErrBusy)
	}
	return ledger.Lease{ID: "0123456789ab", Owner: o}, f.record("acquire " + o.EntryPoint + " " + o.Name)
}

func (f *fakeDevices) Prepare(_ context.Context, _ ledger.Lease, spec *specs.Spec, root *os.File) (Prepared, error) {
	if f.job.Devices == "unprepared" {
		return Prepared{}, errors.New("no driver files")
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(root.Fd()), "bin/busybox", &st, 0); err != nil {
		return Prepared{}, fmt.Errorf("look into the root: %w", err)
	}
	spec.Process.Env = append(spec.Process.Env, "PREPARED=yes")
	return Prepared{CPUs: f.job.CPUsNear}, f.record("prepare")
}

func (f *fakeDevices) Divide(_ context.Context, l ledger.Lease) ([][]gpu.Device, error) {
	return [][]gpu.Device{l.Devices}, nil
}

func (f *fakeDevices) CPUs(context.Context, ledger.Lease) (string, error) { return "", nil }

func (f *fakeDevices) Release(_ context.Context, l ledger.Lease) error {
	procs, err := filepath.Glob("/sys/fs/cgroup/*" + l.Owner.Cgroup)
	if err != nil || len(procs) > 0 {
		return errors.Join(fmt.Errorf("released before the cgroup was gone: %v", procs), err, f.record("early release"))
	}
	return f.record("release")
}

// rig is one runtime on one version of cgroups, with directories of its own.
type rig struct {
	t    *testing.T
	base job
}

// onAllRigs runs a test on each runtime and version of cgroups that this machine has.
func onAllRigs(t *testing.T, f func(t *testing.T, r rig)) {
	t.Helper()
	for _, k := range usableKinds(t) {
		if !slices.Contains(testutil.Pairs(t), testutil.Pair{Runtime: k.runtime, Cgroup: k.version}) {
			continue
		}
		t.Run(k.runtime+" "+k.version, func(t *testing.T) { f(t, newRig(t, k)) })
	}
}

func newAnyRig(t *testing.T) rig { return newRig(t, usableKinds(t)[0]) }

type kind struct{ runtime, version string }

func usableKinds(t *testing.T) []kind {
	t.Helper()
	needRoot(t)
	versions := []string{"v1", "v2"}
	if _, err := os.Stat("/sys/fs/cgroup/devices/tasks"); err != nil {
		versions = versions[1:]
	}
	var all []kind
	for _, runtime := range []string{"runc", "crun"} {
		if ociruntime.LookUp(runtime) == "" {
			skipOrFail(t, "no "+runtime)
		}
		for _, version := range versions {
			if runtime == "runc" || version == "v1" || mayLiftMemlock(t) {
				all = append(all, kind{runtime, version})
			}
		}
	}
	return all
}

// TestCrunOnV2 is where it shows that a machine can't run these tests with crun
// on cgroup v2; the other tests leave that out.
func TestCrunOnV2(t *testing.T) {
	needRoot(t)
	if !mayLiftMemlock(t) {
		t.Skip("crun before 1.9 on cgroup v2 needs CAP_SYS_RESOURCE, which root lacks here")
	}
	r := newRig(t, kind{"crun", "v2"})
	if got := r.sh("echo x", nil); got.stdout != "x\n" {
		t.Errorf("%+v", got)
	}
}

func mayLiftMemlock(t *testing.T) bool {
	t.Helper()
	given, err := spec.ReadHost("", false)
	if err != nil {
		t.Fatal(err)
	}
	tree := given.Cgroups
	tree.Version = cgroup.V2
	return tree.CrunWorks(given.MayExceedLimits() || given.Memlock == unix.RLIM_INFINITY)
}

func newRig(t *testing.T, k kind) rig {
	t.Helper()
	dir := t.TempDir()
	r := rig{t: t, base: job{
		Cgroups: k.version, Runtime: k.runtime,
		State: filepath.Join(dir, "state"), Data: filepath.Join(dir, "data"),
		Record: filepath.Join(dir, "record"),
		Image:  busyboxRoot(t), Parent: "/berth-test-" + tasks.NewID(),
	}}
	t.Cleanup(r.cleanUp)
	return r
}

// job returns the rig's job, changed.
func (r rig) job(change func(*job)) job {
	j := r.base
	if change != nil {
		change(&j)
	}
	return j
}

// command is a launch that wasn't started.
func (r rig) command(j job) *exec.Cmd {
	r.t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	return cmd
}

type result struct {
	code           int
	stdout, stderr string
}

func (r rig) run(j job) result {
	r.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := r.command(j)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	return result{code: exitStatus(r.t, cmd.Run()), stdout: stdout.String(), stderr: stderr.String()}
}

// sh runs a shell line in the busybox root.
func (r rig) sh(line string, change func(*job)) result {
	r.t.Helper()
	return r.run(r.job(func(j *job) {
		j.Command = []string{"sh", "-c", line}
		if change != nil {
			change(j)
		}
	}))
}

func exitStatus(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		return exit.ExitCode()
	}
	return 0
}

// listCgroups lists the directories of the rig's cgroup in all hierarchies, and with
// "/*" those of tasks in it.
func (r rig) listCgroups(below string) []string {
	v1, _ := filepath.Glob("/sys/fs/cgroup/*" + r.base.Parent + below)
	v2, _ := filepath.Glob("/sys/fs/cgroup" + r.base.Parent + below)
	return slices.DeleteFunc(slices.Concat(v1, v2), func(p string) bool {
		fi, err := os.Stat(p)
		return err != nil || !fi.IsDir()
	})
}

// cleanUp removes what even a failed test may not leave on the machine.
func (r rig) cleanUp() {
	r.expectNothingLeft()
	for _, dir := range r.listCgroups("") {
		filepath.WalkDir(dir, func(p string, _ os.DirEntry, _ error) error {
			if strings.HasSuffix(p, "/cgroup.procs") {
				for pid := range strings.Lines(readFile(r.t, p)) {
					killPID(r.t, strings.TrimSpace(pid))
				}
			}
			return nil
		})
	}
	// What was killed needs a moment to be gone.
	for range 100 {
		for _, dir := range r.listCgroups("") {
			exec.Command("find", dir, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").Run() // tried again
		}
		if len(r.listCgroups("")) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.t.Errorf("cgroups stay: %q", r.listCgroups(""))
}

// expectNothingLeft fails the test if a task left anything.
func (r rig) expectNothingLeft() {
	tasks, _ := filepath.Glob(filepath.Join(r.base.Data, "tasks", "*"))
	states, _ := filepath.Glob(filepath.Join(r.base.State, "runtime", "*", "*"))
	groups := slices.DeleteFunc(r.listCgroups("/*"), func(dir string) bool { return filepath.Base(dir) == "monitors" })
	temps, _ := filepath.Glob(filepath.Join(r.base.Data, "images", "*", "*", "tmp"))
	names, _ := filepath.Glob(filepath.Join(r.base.Data, "names", "*"))
	sockets, _ := filepath.Glob(filepath.Join(r.base.State, "attach", "*"))
	if left := slices.Concat(tasks, states, groups, temps, names, sockets); len(left) > 0 {
		r.t.Errorf("left behind: %q", left)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(mounts, []byte(r.base.Data)) {
		r.t.Errorf("mounts were left behind, %v", err)
	}
}

// busyboxRoot makes a root file system in a directory.
func busyboxRoot(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range busyboxFiles(t) {
		path := filepath.Join(dir, f.Name)
		var err error
		switch {
		case f.Link != "":
			err = os.Symlink(f.Link, path)
		case strings.HasSuffix(f.Name, "/"):
			err = errors.Join(os.Mkdir(path, 0o755), os.Chown(path, f.UID, f.GID))
		default:
			err = os.WriteFile(path, []byte(f.Body), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func busyboxFiles(t *testing.T) []oci.File {
	t.Helper()
	program, err := os.ReadFile("/bin/busybox")
	if err != nil || bytes.Contains(program, []byte("/lib64/ld-linux")) {
		skipOrFail(t, "no static /bin/busybox")
	}
	return oci.Busybox(program, []string{
		"sh", "cat", "ls", "true", "false", "sleep", "id", "env", "pwd", "touch", "mknod", "stty", "kill", "head", "hostname", "df", "ip", "grep", "wc", "dd", "mkdir", "tty", "rm", "nproc", "test", "chmod",
	})
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		skipOrFail(t, "not root")
	}
}

func skipOrFail(t *testing.T, what string) {
	t.Helper()
	testutil.SkipOrFail(t, "needs root and the tools: "+what)
}
