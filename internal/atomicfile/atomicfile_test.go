package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

func TestWrite(t *testing.T) {
	old := unix.Umask(0o077)
	t.Cleanup(func() { unix.Umask(old) })
	for _, tt := range []struct {
		name string
		o    Options
		have func(t *testing.T, path string)
	}{
		{"new file", Options{}, func(*testing.T, string) {}},
		{"old file", Options{}, func(t *testing.T, p string) { writeFile(t, p, "a much longer old text") }},
		{"symbolic link", Options{}, func(t *testing.T, p string) {
			writeFile(t, p+".target", "target")
			if err := os.Symlink(p+".target", p); err != nil {
				t.Fatal(err)
			}
		}},
		{"sync", Options{Sync: true}, func(*testing.T, string) {}},
		{"left by a killed writer", Options{FixedTemp: true}, func(t *testing.T, p string) {
			writeFile(t, p+".tmp", "half of a much longer text")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			tt.have(t, path)
			if err := Write(path, []byte("new"), 0o644, tt.o); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil || string(got) != "new" {
				t.Errorf("content %q, %v", got, err)
			}
			fi, err := os.Lstat(path)
			if err != nil || fi.Mode() != fs.FileMode(0o644) {
				t.Errorf("mode %v, %v", fi.Mode(), err)
			}
			if b, err := os.ReadFile(path + ".target"); err == nil && string(b) != "target" {
				t.Errorf("the link's target was written: %q", b)
			}
			left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*tmp*"))
			if err != nil || len(left) != 0 {
				t.Errorf("left %v, %v", left, err)
			}
		})
	}
}

func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(path, "by a directory"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new"), 0o644, Options{}); err == nil {
		t.Error("a directory was replaced")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
	if err := Write(filepath.Join(dir, "no", "such"), nil, 0o644, Options{}); err == nil {
		t.Error("written without a directory")
	}
}

func TestVolatile(t *testing.T) {
	if Volatile("/proc") || Volatile(filepath.Join(t.TempDir(), "none")) {
		t.Error("procfs or a missing directory counts as tmpfs")
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOwner(t *testing.T) {
	testutil.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "file")
	writeFile(t, path, "old")
	if err := Write(path, []byte("new"), 0o640, Options{Owner: &Owner{UID: 12, GID: 34}}); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Uid != 12 || st.Gid != 34 || st.Mode&0o7777 != 0o640 {
		t.Errorf("%d:%d %o, %v", st.Uid, st.Gid, st.Mode, err)
	}
}
