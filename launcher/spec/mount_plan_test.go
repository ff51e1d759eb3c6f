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
		bind("/new/place", dir), bind("/new/file", file), bind("/etc/hosts", file), bind("/etc/nested", dir),
		bind("/var", dir), bind("/var/x", file), bind("/etc/gone", dir), bind("/dev/shm", dir), bind("/dev/log", file),
		bind("/sys", "/sys"), bind("/sys/kernel", dir), bind("/proc/cpuinfo", file), bind("/procs", dir), bind("/host/proc", "/proc"),
		memory("/run"), memory("/sys"), memory("/dev/shm"), memory("/new"),
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

func TestCgroupMounts(t *testing.T) {
	const table = "22 1 0:20 / / rw - ext4 /dev/vda rw\n" +
		"30 22 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw\n" +
		"31 22 0:27 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n" +
		"32 22 0:27 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n" +
		"33 22 0:28 / /with\\040space rw - cgroup cgroup rw,pids\n" +
		"34 22 0:29 / /cgroup rw - tmpfs cgroup rw\nbroken\n - cgroup\n"
	want := []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup/devices", "/with space"}
	if diff := cmp.Diff(want, cgroupMounts([]byte(table))); diff != "" {
		t.Error(diff)
	}
}

func TestMakeCgroupsReadOnly(t *testing.T) {
	bind := func(src, dst string, options ...string) specs.Mount {
		return specs.Mount{Type: "bind", Source: src, Destination: dst, Options: options}
	}
	dir := t.TempDir()
	if err := os.Symlink("/sys/fs/cgroup", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	all := cgroupMounts(table)
	if len(all) == 0 {
		t.Skip("needs cgroups")
	}
	one := all[0]
	tests := map[string]struct{ given, want []specs.Mount }{
		"itself":            {[]specs.Mount{bind(one, "/s", "rbind", "rw")}, []specs.Mount{bind(one, "/s", "rbind", "ro")}},
		"read-only":         {[]specs.Mount{bind(one, "/s", "bind", "ro")}, []specs.Mount{bind(one, "/s", "bind", "ro")}},
		"without what's in": {[]specs.Mount{bind("/", "/s", "bind")}, []specs.Mount{bind("/", "/s", "bind")}},
		"of no concern":     {[]specs.Mount{bind(dir, "/s", "rbind")}, []specs.Mount{bind(dir, "/s", "rbind")}},
		"no bind":           {[]specs.Mount{{Type: "tmpfs", Destination: "/s"}}, []specs.Mount{{Type: "tmpfs", Destination: "/s"}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := makeCgroupsReadOnly(tt.given)
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
	for _, given := range []specs.Mount{bind("/", "/s", "rbind"), bind("/sys", "/s/sys", "rbind", "rw"), bind(dir+"/link", "/s/sys/fs/cgroup", "rbind")} {
		got, err := makeCgroupsReadOnly([]specs.Mount{given})
		if err != nil {
			t.Fatal(err)
		}
		for _, point := range all {
			covered := false
			for _, m := range got {
				covered = covered || m.Destination == "/s"+point && strings.Contains(strings.Join(m.Options, ","), "ro")
			}
			if !covered && isBelow(point, "/sys/fs/cgroup") {
				t.Errorf("%v leaves %s open: %v", given, point, got)
			}
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
