package spec

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

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
