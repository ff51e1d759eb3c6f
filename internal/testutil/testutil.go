// Package testutil has what unit tests of several packages need. Black-box tests have
// test/rig.
package testutil

import (
	"errors"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Must ends the test on an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// NeedRoot skips the test, as [SkipOrFail] does, unless this process is root's and the programs are
// in PATH.
func NeedRoot(t testing.TB, programs ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		SkipOrFail(t, "needs root")
	}
	for _, name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			SkipOrFail(t, "needs "+name)
		}
	}
}

// SkipOrFail skips the test for a reason. With BERTH_TEST_ROOT=1 the test fails instead.
func SkipOrFail(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("BERTH_TEST_ROOT") == "1" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// PrivateMounts gives the rest of the test a mount namespace of its own. The thread is never
// unlocked, so the namespace ends with the test's goroutine.
func PrivateMounts(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	Must(t, unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS))
	Must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
}

// OnlyCgroup is [PrivateMounts] with one version of cgroups, "v1" or "v2".
func OnlyCgroup(t testing.TB, version string) {
	t.Helper()
	PrivateMounts(t)
	if version == "v2" {
		Must(t, unix.Mount("none", "/sys/fs/cgroup", "cgroup2", 0, ""))
		return
	}
	if _, err := os.Stat("/sys/fs/cgroup/devices/devices.allow"); err != nil {
		t.Skip("the kernel's device controller of cgroup v1 isn't mounted here")
	}
	// crun refuses hosts with both.
	if err := unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH); !errors.Is(err, unix.EINVAL) {
		Must(t, err)
	}
}

// Pair is a runtime and a version of cgroups.
type Pair struct{ Runtime, Cgroup string }

// RunsAll reports whether BERTH_TEST_ALL=1 asks for the tests in full, as CI does.
func RunsAll() bool { return os.Getenv("BERTH_TEST_ALL") == "1" }

// Pairs returns the pairs on which a test runs. With BERTH_TEST_ALL=1 these are all four. Otherwise each runtime is paired
// with one version of cgroups, by a hash of the test's name, so that the tests of a package together cover all pairs.
func Pairs(t testing.TB) []Pair {
	t.Helper()
	runtimes := []string{"runc", "crun"}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(t.Name())) // never fails
	if hash.Sum32()%2 == 1 {
		slices.Reverse(runtimes)
	}
	pairs := []Pair{{runtimes[0], "v1"}, {runtimes[1], "v2"}}
	if RunsAll() {
		pairs = []Pair{{"runc", "v1"}, {"crun", "v1"}, {"runc", "v2"}, {"crun", "v2"}}
	}
	return pairs
}

// PairsByCgroup returns Pairs as runtimes by version of cgroups.
func PairsByCgroup(t testing.TB) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, p := range Pairs(t) {
		all[p.Cgroup] = append(all[p.Cgroup], p.Runtime)
	}
	return all
}

// DefinesTest reports whether the tests of a folder below root have one of that name.
func DefinesTest(t testing.TB, root, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	Must(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		Must(t, err)
		if strings.Contains(string(text), "\nfunc "+name+"(t *testing.T) {") {
			return true
		}
	}
	return false
}
