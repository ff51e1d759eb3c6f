package spec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestIsCovered(t *testing.T) {
	mounts := []specs.Mount{{Destination: "/a/b"}}
	for path, want := range map[string]bool{"/a/b": true, "/a/b/c": true, "/a/bc": false, "/a": false} {
		if IsCovered(mounts, path) != want {
			t.Errorf("%s: %v, want %v", path, !want, want)
		}
	}
}

// What can be mounted isn't refused.
func TestMountPoints(t *testing.T) {
	dir := t.TempDir()
	image := filepath.Join(dir, "image")
	file := filepath.Join(dir, "file")
	for _, name := range []string{"image/etc/nested", "image/run"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"var": "run", "etc/gone": "/no/such"} {
		if err := os.Symlink(to, filepath.Join(image, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	files := map[string]string{"/etc/hosts": file}
	for _, m := range []specs.Mount{
		bindMount("/new/place", dir), bindMount("/new/file", file), bindMount("/etc/hosts", file), bindMount("/etc/nested", dir),
		bindMount("/var", dir), bindMount("/var/x", file), bindMount("/etc/gone", dir), bindMount("/dev/shm", dir), bindMount("/dev/log", file),
		bindMount("/sys", "/sys"), bindMount("/sys/kernel", dir), bindMount("/proc/cpuinfo", file), bindMount("/procs", dir), bindMount("/host/proc", "/proc"),
		tmpfsMount("/run"), tmpfsMount("/sys"), tmpfsMount("/dev/shm"), tmpfsMount("/new"),
	} {
		if err := checkDestinations([]specs.Mount{m}); err != nil {
			t.Error(err)
		}
		if err := CheckMountPoints(root, files, []specs.Mount{m}); err != nil {
			t.Error(err)
		}
	}
	for _, dir := range []string{"/", "/proc", "/proc/self", "/sys/kernel", "/proc/../new", "/processes"} {
		if err := checkKernelDir(dir); err != nil {
			t.Error(err)
		}
	}
}

// Mounts that lie in others are made after them, and those at one level stay in order.
func TestSortMounts(t *testing.T) {
	mounts := []specs.Mount{{Destination: "/a/b"}, {Destination: "/c"}, {Destination: "/a"}, {Destination: "/a/a"}}
	want := []specs.Mount{{Destination: "/c"}, {Destination: "/a"}, {Destination: "/a/b"}, {Destination: "/a/a"}}
	if err := sortMounts(mounts); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, mounts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := sortMounts(append(mounts, specs.Mount{Destination: "/a"})); err == nil || !strings.Contains(err.Error(), "two mounts at /a") {
		t.Errorf("twice: %v", err)
	}
}
