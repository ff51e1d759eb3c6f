package dirwatch

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

func TestChanged(t *testing.T) {
	dir := t.TempDir()
	w := Open(dir, unix.IN_MOVED_TO)
	defer w.Close()
	name := filepath.Join(dir, "file")
	testutil.Must(t, os.WriteFile(name, nil, 0o600))
	for range 3 { // a change before the wait isn't lost
		testutil.Must(t, os.Rename(name, name+"2"))
		testutil.Must(t, os.Rename(name+"2", name))
	}
	select {
	case <-w.Changed:
	case <-time.After(10 * time.Second):
		t.Fatal("no change was reported")
	}
}

// TestMissingDirectory: a directory that can't be watched reports nothing, and Close is allowed.
func TestMissingDirectory(t *testing.T) {
	w := Open(filepath.Join(t.TempDir(), "missing"), unix.IN_MOVED_TO)
	if w.Changed != nil {
		t.Error("a missing directory is watched")
	}
	w.Close()
}
