package removetree

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// TestDeepTree: a tree with more levels than the process may have open files, which os.RemoveAll
// refuses, is removed, files and links beside its directories too.
func TestDeepTree(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	outside := filepath.Join(t.TempDir(), "file")
	testutil.Must(t, os.WriteFile(outside, nil, 0o600))
	var limit unix.Rlimit
	testutil.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	few := limit
	few.Cur = 200
	testutil.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	t.Cleanup(func() { testutil.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) })
	makeDeep(t, dir, outside, 1000)
	if err := os.RemoveAll(dir); !errors.Is(err, unix.EMFILE) {
		t.Errorf("os.RemoveAll removes such a tree: %v", err)
	}
	testutil.Must(t, RemoveAll(dir))
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := os.Lstat(outside); err != nil {
		t.Error(err)
	}
	testutil.Must(t, RemoveAll(dir))
}

// TestProtectedTree: immutable and append-only files and directories are removed; what a link leads to keeps its flags.
func TestProtectedTree(t *testing.T) {
	testutil.NeedRoot(t)
	dir, outside := filepath.Join(t.TempDir(), "tree"), filepath.Join(t.TempDir(), "file")
	testutil.Must(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700))
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "a", "\xff"), 0o700)) // names need not be UTF-8
	for _, name := range []string{filepath.Join(dir, "file"), filepath.Join(dir, "a/b/file"), outside} {
		testutil.Must(t, os.WriteFile(name, nil, 0o600))
	}
	testutil.Must(t, os.Symlink(outside, filepath.Join(dir, "a/link")))
	testutil.Must(t, unix.Mkfifo(filepath.Join(dir, "a/pipe"), 0o600))
	t.Cleanup(func() { setFlags(t, outside, 0) })
	for _, p := range []struct {
		name string
		flag int
	}{{"file", immutable}, {"a/b/file", appendOnly}, {"a/b", immutable}, {"a", appendOnly}, {"", immutable}} {
		setFlags(t, filepath.Join(dir, p.name), p.flag)
	}
	setFlags(t, outside, immutable)
	if err := os.RemoveAll(dir); !errors.Is(err, unix.EPERM) {
		t.Errorf("os.RemoveAll removes such a tree: %v", err)
	}
	testutil.Must(t, RemoveAll(dir))
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := os.Remove(outside); !errors.Is(err, unix.EPERM) {
		t.Errorf("a file outside of the tree has lost its flag: %v", err)
	}
}

// TestProtectedPipe: XFS has flags of FIFOs, too.
func TestProtectedPipe(t *testing.T) {
	testutil.NeedRoot(t, "mkfs.xfs", "mount", "umount")
	disk, at := filepath.Join(t.TempDir(), "disk"), t.TempDir()
	testutil.Must(t, os.WriteFile(disk, nil, 0o600))
	testutil.Must(t, os.Truncate(disk, 400<<20))
	for _, words := range [][]string{{"mkfs.xfs", "-q", disk}, {"mount", "-o", "loop", disk, at}} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", words, err, out)
		}
	}
	t.Cleanup(func() { testutil.Must(t, exec.Command("umount", "--lazy", at).Run()) })
	dir := filepath.Join(at, "tree")
	testutil.Must(t, os.Mkdir(dir, 0o700))
	pipe := filepath.Join(dir, "stdout")
	testutil.Must(t, unix.Mkfifo(pipe, 0o600))
	setFlags(t, pipe, immutable)
	if err := os.RemoveAll(dir); !errors.Is(err, unix.EPERM) {
		t.Errorf("os.RemoveAll removes such a tree: %v", err)
	}
	testutil.Must(t, RemoveAll(dir))
}

func setFlags(t *testing.T, name string, flags int) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	testutil.Must(t, err)
	defer f.Close()
	testutil.Must(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags))
}

// makeDeep makes directories in each other, with a file and a link to outside in each hundredth.
func makeDeep(t *testing.T, dir, outside string, levels int) {
	t.Helper()
	name := strings.Repeat("d", 20) // paths of all levels are longer than PATH_MAX
	testutil.Must(t, os.Mkdir(dir, 0o700))
	at, err := os.OpenRoot(dir)
	testutil.Must(t, err)
	for i := range levels {
		if i%100 == 0 {
			testutil.Must(t, at.WriteFile("file", nil, 0o600))
			testutil.Must(t, at.Symlink(outside, "link"))
		}
		testutil.Must(t, at.Mkdir(name, 0o700))
		below, err := at.OpenRoot(name)
		testutil.Must(t, err)
		testutil.Must(t, at.Close())
		at = below
	}
	testutil.Must(t, at.Close())
}
