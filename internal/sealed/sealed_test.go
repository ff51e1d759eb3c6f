package sealed

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// copyBinary returns a program of the test's own.
func copyBinary(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/bin/cat")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, data, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func openFile(t *testing.T, path string) *os.File {
	t.Helper()
	testutil.NeedRoot(t)
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestRuns(t *testing.T) {
	f := openFile(t, copyBinary(t))
	cmd := exec.Command(Path(f), "/proc/self/mountinfo", "/proc/self/comm")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if strings.Contains(string(out), f.Name()) {
		t.Errorf("a mount of the program is left:\n%s", out)
	}
}

func TestMount(t *testing.T) {
	path := copyBinary(t)
	openFile(t, path) // needs root
	at := filepath.Join(t.TempDir(), "at")
	if err := os.WriteFile(at, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the mount ends with the thread
		done <- func() error {
			if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, "")); err != nil {
				return err
			}
			if err := Mount(path, at); err != nil {
				return err
			}
			if w, err := os.OpenFile(at, os.O_WRONLY, 0); !errors.Is(err, unix.EROFS) {
				t.Errorf("opened for writing: %v, %v", w, err)
			}
			return exec.Command(at, "/dev/null").Run()
		}()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if fi, err := os.Stat(at); err != nil || fi.Size() != 0 {
		t.Errorf("outside: %v, %v", fi, err)
	}
}

func TestSealedAgainstWrites(t *testing.T) {
	path := copyBinary(t)
	f := openFile(t, path)
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Flags&unix.ST_RDONLY == 0 {
		t.Errorf("flags of the mount %#x, %v: want a read-only one", st.Flags, err)
	}
	if w, err := os.OpenFile(Path(f), os.O_WRONLY, 0); !errors.Is(err, unix.EROFS) {
		t.Errorf("opened for writing: %v, %v", w, err)
	}
	writable := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(int(f.Fd()), "", unix.AT_EMPTY_PATH, &writable); !errors.Is(err, unix.EINVAL) {
		t.Errorf("make it writable again: %v, want EINVAL", err)
	}
	if err := os.WriteFile(path, []byte("new"), 0o700); err != nil {
		t.Errorf("the program itself: %v, want it to be as it was", err)
	}
}

func TestRefuses(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, path string
		want       error
	}{
		{"a script", script, errNoBinary},
		{"nothing", filepath.Join(t.TempDir(), "none"), fs.ErrNotExist},
		{"a directory", t.TempDir(), errNoBinary},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if f, err := Open(tt.path); !errors.Is(err, tt.want) {
				t.Errorf("Open: %v, %v; want %v", f, err, tt.want)
			}
		})
	}
}
