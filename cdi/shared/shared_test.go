package shared

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// tempDir returns a directory of the test with one file, and unmounts it afterwards.
func tempDir(t *testing.T) (d Dir, file string) {
	t.Helper()
	testutil.NeedRoot(t)
	top := t.TempDir()
	d = Dir{Source: filepath.Join(top, "driver"), Mount: filepath.Join(top, "shared")}
	file = filepath.Join(d.Source, "lib", "libcuda.so.1")
	testutil.Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	testutil.Must(t, os.WriteFile(file, []byte("library"), 0o755))
	t.Cleanup(func() { _ = unix.Unmount(d.Mount, unix.MNT_DETACH) })
	return d, file
}

// TestFilesHaveNoOwner: the mount's files can be read; no process can take a lease on them, write
// to them or change them, whatever the mount's flags are.
func TestFilesHaveNoOwner(t *testing.T) {
	d, file := tempDir(t)
	if d.IsMounted() {
		t.Error("mounted before it is")
	}
	testutil.Must(t, d.EnsureMounted(t.Context()))
	bound := d.PathForContainers(file)
	if data, err := os.ReadFile(bound); err != nil || string(data) != "library" {
		t.Errorf("read %q, %v", data, err)
	}
	f, err := os.Open(bound)
	testutil.Must(t, err)
	defer f.Close()
	testutil.Must(t, unix.Mount("", d.Mount, "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	if w, err := os.OpenFile(bound, os.O_WRONLY, 0); err == nil {
		w.Close()
		t.Error("a file can be opened for writing")
	}
	if err := os.Remove(bound); !errors.Is(err, unix.EOVERFLOW) {
		t.Errorf("remove: %v", err)
	}
	var st unix.Stat_t
	testutil.Must(t, unix.Stat(bound, &st))
	if st.Uid == 0 {
		t.Error("root owns the file")
	}
}

// TestMountIsMadeAgain: a missing mount, and one of a directory that was replaced, is made again.
func TestMountIsMadeAgain(t *testing.T) {
	d, file := tempDir(t)
	testutil.Must(t, d.EnsureMounted(t.Context()))
	testutil.Must(t, d.EnsureMounted(t.Context()))
	testutil.Must(t, unix.Unmount(d.Mount, 0))
	if d.IsMounted() {
		t.Error("one call mounted twice")
	}
	testutil.Must(t, d.EnsureMounted(t.Context()))
	testutil.Must(t, os.RemoveAll(d.Source))
	testutil.Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	if d.IsMounted() {
		t.Error("the mount is of a directory that is gone")
	}
	testutil.Must(t, d.EnsureMounted(t.Context()))
	// A mount that maps all owners doesn't count.
	testutil.Must(t, unix.Unmount(d.Mount, 0))
	testutil.Must(t, unix.Mount(d.Source, d.Mount, "", unix.MS_BIND, ""))
	if d.IsMounted() {
		t.Error("a plain bind mount is taken for an idmapped one")
	}
	testutil.Must(t, d.EnsureMounted(t.Context()))
	if !d.IsMounted() {
		t.Error("not mounted")
	}
}

// TestBlockedMountPoint: a file in the place of the mount point is an error that names it; the mount is
// not left out.
func TestBlockedMountPoint(t *testing.T) {
	d, _ := tempDir(t)
	testutil.Must(t, os.WriteFile(d.Mount, nil, 0o600))
	if err := d.EnsureMounted(t.Context()); err == nil || errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), d.Mount) {
		t.Errorf("error %v", err)
	}
}

func TestMountAtOnce(t *testing.T) {
	d, _ := tempDir(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := d.EnsureMounted(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	testutil.Must(t, unix.Unmount(d.Mount, 0))
	if d.IsMounted() {
		t.Error("mounted more than once")
	}
}

// TestUnsupported: the overlay file system cannot be idmapped.
func TestUnsupported(t *testing.T) {
	d, _ := tempDir(t)
	top := filepath.Dir(d.Source)
	for _, dir := range []string{"upper", "work"} {
		testutil.Must(t, os.Mkdir(filepath.Join(top, dir), 0o755))
	}
	out, err := exec.Command("mount", "-t", "overlay", "-o", "lowerdir="+d.Source+",upperdir="+top+"/upper,workdir="+top+"/work", "overlay", d.Source).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = unix.Unmount(d.Source, unix.MNT_DETACH) })
	if err := d.EnsureMounted(t.Context()); !errors.Is(err, ErrUnsupported) {
		t.Errorf("error %v", err)
	}
}

func TestPathForContainers(t *testing.T) {
	for _, tt := range []struct{ mount, file, want string }{
		{"/data/shared", "/data/driver/550/libcuda.so", "/data/shared/550/libcuda.so"},
		{"/data/shared", "/data/driver-old/libcuda.so", "/data/driver-old/libcuda.so"},
		{"", "/data/driver/550/libcuda.so", "/data/driver/550/libcuda.so"},
	} {
		if got := (Dir{Source: "/data/driver", Mount: tt.mount}).PathForContainers(tt.file); got != tt.want {
			t.Errorf("%s by %q: %s", tt.file, tt.mount, got)
		}
	}
}
