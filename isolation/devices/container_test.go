package devices

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// eachRuntime runs a test with each runtime on each version of cgroups alone, as machines with one
// version mount them.
func eachRuntime(t *testing.T, test func(t *testing.T, h cgroup.Hierarchy, runtime string)) {
	for _, version := range []string{"v1", "v2"} {
		for _, name := range []string{"runc", "crun"} {
			t.Run(version+" "+name, func(t *testing.T) {
				testutil.NeedRoot(t, name)
				testutil.OnlyCgroup(t, version)
				h, err := cgroup.Detect("")
				testutil.Must(t, err)
				test(t, h, name)
			})
		}
	}
}

// privileged is a container of root with every capability.
func privileged(rules []edits.Rule, cgroup string, namespaces ...specs.LinuxNamespaceType) *specs.Spec {
	caps := []string{"CAP_SYS_ADMIN", "CAP_MKNOD", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_NET_ADMIN", "CAP_BPF"}
	s := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: "rootfs"},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=755"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"},
		},
		Process: &specs.Process{
			Cwd: "/", Args: []string{"/probe", "probe"}, Env: []string{},
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Linux: &specs.Linux{CgroupsPath: cgroup, Resources: &specs.LinuxResources{}},
	}
	for _, r := range rules {
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, r.Spec())
	}
	for _, n := range append(namespaces, specs.MountNamespace, specs.IPCNamespace, specs.UTSNamespace) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: n})
	}
	return s
}

// runCommands runs the spec with the commands, and returns the answers.
func runCommands(t *testing.T, name string, spec *specs.Spec, commands []string) []string {
	t.Helper()
	bundle, state := makeBundle(t, spec), t.TempDir()
	id := filepath.Base(spec.Linux.CgroupsPath)
	cmd := exec.Command(name, "--root", state, "run", "--bundle", bundle, id)
	cmd.Env = append(environ(t, name), "XDG_RUNTIME_DIR="+state)
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		_ = exec.Command(name, "--root", state, "delete", "--force", id).Run() // the container may be gone already
		t.Fatalf("%s: %v: %s\nin %s", name, err, stderr.String(), bundle)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// makeBundle makes a bundle of the spec, with two nodes and the probe in its root.
func makeBundle(t *testing.T, spec *specs.Spec) string {
	t.Helper()
	bundle := t.TempDir()
	root := filepath.Join(bundle, "rootfs")
	for _, d := range []string{"proc", "dev", "tmp", "mnt", "nodes"} {
		testutil.Must(t, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	for _, minor := range []int{3, 5} {
		testutil.Must(t, unix.Mknod(fmt.Sprintf("%s/nodes/c195:%d", root, minor), unix.S_IFCHR|0o666, int(unix.Mkdev(195, uint32(minor)))))
	}
	self, err := os.ReadFile("/proc/self/exe")
	testutil.Must(t, err)
	testutil.Must(t, os.WriteFile(filepath.Join(root, "probe"), self, 0o755))
	config, err := json.Marshal(spec)
	testutil.Must(t, err)
	testutil.Must(t, os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600))
	return bundle
}

func environ(t *testing.T, name string) []string {
	t.Helper()
	if name == "crun" {
		return append(os.Environ(), crunEnvironment(t)...)
	}
	return os.Environ()
}

// crunEnvironment is the environment in which crun before 1.9 isn't told that it may not
// raise RLIMIT_MEMLOCK, which kernels since 5.11 don't ask for.
func crunEnvironment(t *testing.T) []string {
	t.Helper()
	var limit unix.Rlimit
	testutil.Must(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	if limit.Max == unix.RLIM_INFINITY {
		return nil
	}
	lib := filepath.Join(t.TempDir(), "memlock.so")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", lib, "../../test/simnode/sim/stub/memlock.c").CombinedOutput(); err != nil {
		testutil.SkipOrFail(t, fmt.Sprintf("compile what lets crun load device programs: %v: %s", err, out))
	}
	return []string{"LD_PRELOAD=" + lib}
}

// newOuterPath returns the path of an outer cgroup that is removed after the test.
func newOuterPath(t *testing.T, h cgroup.Hierarchy) string {
	t.Helper()
	path := fmt.Sprintf("/berth-devices-%d-%d", os.Getpid(), counter.Add(1))
	t.Cleanup(func() { clear(t, h, path) })
	return path
}

// removalCommands are the commands by which a container with CAP_SYS_ADMIN removes its own rules. Each of
// them works without an outer cgroup.
func removalCommands(v cgroup.Version) []string {
	if v == cgroup.V1 {
		return []string{"mount cgroup /mnt devices", "put /mnt/devices.allow c 195:5 rw"}
	}
	return []string{"mount cgroup2 /mnt", "detach /mnt"}
}

var tries = []string{"open /nodes/c195:3 rw", "open /nodes/c195:5 rw"}

// TestContainerLiftsItsRules: with an outer cgroup this gains the container nothing. Without one
// the container opens devices that it hasn't leased, which shows that the attack works.
func TestContainerLiftsItsRules(t *testing.T) {
	eachRuntime(t, func(t *testing.T, h cgroup.Hierarchy, name string) {
		commands := slices.Concat(tries, removalCommands(h.Version), tries)
		for _, outer := range []bool{false, true} {
			path := newOuterPath(t, h)
			testutil.Must(t, h.Create(path))
			want := []string{"ENXIO", "EPERM", "ok", "ok", "ENXIO", "ENXIO"}
			if outer {
				testutil.Must(t, CreateOuterCgroup(t.Context(), h, path, rulesOfLease()))
				want = []string{"ENXIO", "EPERM", "ok", "ok", "ENXIO", "EPERM"}
				if h.Version == cgroup.V1 {
					want[3] = "EPERM"
				}
			}
			spec := privileged(rulesOfLease(), path+"/"+filepath.Base(path), specs.PIDNamespace, specs.CgroupNamespace)
			if got := runCommands(t, name, spec, commands); !slices.Equal(got, want) {
				t.Errorf("outer %v: %q, want %q", outer, got, want)
			}
			testutil.Must(t, RemoveOuterCgroup(t.Context(), h, path))
		}
	})
}

// The next two tests check the limits that the documentation of [CreateOuterCgroup] names: ways
// around the outer cgroup.

func TestOuterFailsWithoutNamespace(t *testing.T) {
	eachRuntime(t, func(t *testing.T, h cgroup.Hierarchy, name string) {
		path := newOuterPath(t, h)
		testutil.Must(t, CreateOuterCgroup(t.Context(), h, path, rulesOfLease()))
		inner := path + "/" + filepath.Base(path)
		commands := []string{"mount cgroup2 /mnt", "detach /mnt" + path, "detach /mnt" + inner}
		if h.Version == cgroup.V1 {
			commands = []string{"mount cgroup /mnt devices", "put /mnt" + path + "/devices.allow c 195:5 rw", "put /mnt" + inner + "/devices.allow c 195:5 rw"}
		}
		checkWayAround(t, name, privileged(rulesOfLease(), inner, specs.PIDNamespace), commands)
	})
}

func TestOuterFailsAgainstHandles(t *testing.T) {
	eachRuntime(t, func(t *testing.T, h cgroup.Hierarchy, name string) {
		path := newOuterPath(t, h)
		testutil.Must(t, CreateOuterCgroup(t.Context(), h, path, rulesOfLease()))
		var st unix.Stat_t
		dir, err := h.Dir(path)
		testutil.Must(t, errors.Join(err, unix.Stat(dir, &st)))
		commands := slices.Insert(removalCommands(h.Version), 1, fmt.Sprintf("handle /mnt %d", st.Ino))
		checkWayAround(t, name, privileged(rulesOfLease(), path+"/"+filepath.Base(path), specs.PIDNamespace, specs.CgroupNamespace), commands)
	})
}

// checkWayAround checks that each of the commands works, and that the rules are gone afterwards.
func checkWayAround(t *testing.T, name string, spec *specs.Spec, commands []string) {
	t.Helper()
	got := runCommands(t, name, spec, slices.Concat(tries, commands, tries))
	if want := []string{"ENXIO", "EPERM", "ok", "ok", "ok", "ENXIO", "ENXIO"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
