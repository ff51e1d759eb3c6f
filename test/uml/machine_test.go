package uml

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/testutil"
)

// TestLimits: limits on memory, processors and processes hold for tasks and ranks of root's and of a user's, with GPUs and without, on a
// machine with cgroups of version 2 alone.
func TestLimits(t *testing.T) { runOnMachine(t, makeTree(t), t.TempDir(), "limits.sh") }

// TestAppArmor: the kernel loads berth's AppArmor profile, and a user's container with subordinate ids starts even if another profile
// denies capabilities to the child processes of unshare.
func TestAppArmor(t *testing.T) {
	tree, dir := makeTree(t), t.TempDir()
	for name, path := range map[string]string{"berth": "../../packaging/apparmor.d/berth", "unshare": "testdata/unshare"} {
		// The parser's own configuration names files that aren't there.
		cmd := exec.Command("chroot", tree, "apparmor_parser", "--config-file", "/dev/null", "--stdout", "--skip-cache",
			"--policy-features", "/etc/apparmor.d/abi/4.0", "--kernel-features", "/etc/apparmor.d/abi/4.0")
		source, err := os.Open(path)
		testutil.Must(t, err)
		cmd.Stdin = source
		profile, err := cmd.Output()
		testutil.Must(t, errors.Join(err, source.Close()))
		testutil.Must(t, os.WriteFile(filepath.Join(dir, name+".profile"), profile, 0o600))
	}
	runOnMachine(t, tree, dir, "apparmor.sh", "lsm=apparmor")
}

// runOnMachine runs a script of testdata on a machine of its own, as testdata/init says, which has the files of dir at /mnt. words are
// for the kernel.
func runOnMachine(t *testing.T, tree, dir, script string, words ...string) {
	t.Helper()
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	testutil.Must(t, testutil.BuildPrograms(filepath.Join(dir, "bin"), "berth", "berth-broker", "berth-hook", "berth-monitor", "berth-nvml", "berth-runtime"))
	for _, words := range [][]string{
		{"go", "build", "-o", filepath.Join(dir, "simnode"), "../simnode"},
		{"cp", "testdata/init", filepath.Join(dir, "init")},
		{"cp", "testdata/" + script, filepath.Join(dir, "script")},
		{"cp", "-r", "../../.cache/image/busybox", filepath.Join(dir, "image")},
		// What it compiles for later calls, too.
		{"env", "--chdir=../..", filepath.Join(dir, "simnode"), "-profile", "dgx-h100", "-cgroup", "v2", "--", "true"},
	} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", words, err, out)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "unshare", append([]string{"--mount", "./boot_machine.sh", tree, dir}, words...)...).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("machine: passed")) {
		t.Errorf("%v: %s", err, out)
	}
}

// makeTree returns the directory with the kernel.
func makeTree(t *testing.T) string {
	t.Helper()
	testutil.NeedRoot(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("there is no user-mode-linux for this processor")
	}
	var said bytes.Buffer
	made := exec.Command("./tree.sh")
	made.Stderr = &said
	tree, err := made.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &said)
	}
	return strings.TrimSpace(string(tree))
}
