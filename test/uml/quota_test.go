// Package uml has tests that need what the kernel of the machine may lack: they run in a kernel of
// their own, Debian's user-mode-linux, which is a program.
package uml

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestProjectQuota: the size of berth run --storage-opt holds on ext4 and on XFS, for files that are
// new and files that are copied up; it bounds nothing else, goes with the task, and is refused where
// quotas are off.
func TestProjectQuota(t *testing.T) {
	tree := makeTree(t)
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "guest"), "./guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "unshare", "--mount", "./boot.sh", tree, dir).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("guest: passed")) {
		t.Errorf("%v: %s", err, out)
	}
}
