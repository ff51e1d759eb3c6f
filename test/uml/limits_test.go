package uml

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/testutil"
)

// TestLimits: limits on memory, processors and processes hold for tasks of root's and of a user's, with GPUs and without, on a
// machine with cgroups of version 2 alone.
func TestLimits(t *testing.T) { runOnMachine(t, "limits.sh") }

// runOnMachine runs a script of testdata on a machine of its own, as testdata/init says.
func runOnMachine(t *testing.T, script string) {
	t.Helper()
	testutil.NeedRoot(t)
	tree := makeTree(t)
	dir := t.TempDir()
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
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "unshare", "--mount", "./boot_machine.sh", tree, dir).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("machine: passed")) {
		t.Errorf("%v: %s", err, out)
	}
}

// makeTree returns the directory with the kernel.
func makeTree(t *testing.T) string {
	t.Helper()
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
