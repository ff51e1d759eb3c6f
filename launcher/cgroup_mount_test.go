package launcher

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

func TestClosed(t *testing.T) {
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
			got, err := closed(tt.given)
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
	for _, given := range []specs.Mount{bind("/", "/s", "rbind"), bind("/sys", "/s/sys", "rbind", "rw"), bind(dir+"/link", "/s/sys/fs/cgroup", "rbind")} {
		got, err := closed([]specs.Mount{given})
		if err != nil {
			t.Fatal(err)
		}
		for _, point := range all {
			covered := false
			for _, m := range got {
				covered = covered || m.Destination == "/s"+point && strings.Contains(strings.Join(m.Options, ","), "ro")
			}
			if !covered && below(point, "/sys/fs/cgroup") {
				t.Errorf("%v leaves %s open: %v", given, point, got)
			}
		}
	}
}

// Root inside stays in its cgroup, whatever of the host's is bound.
func TestBoundCgroupsAreReadOnly(t *testing.T) {
	rigs(t, func(t *testing.T, r rig) {
		for _, v := range []string{"/sys/fs/cgroup:/s", "/sys:/s", "/:/s"} {
			got := r.sh(`for f in $(find /s -xdev -name cgroup.procs -maxdepth 6 2>/dev/null; find /s/sys/fs/cgroup /s/fs/cgroup /s -maxdepth 2 -name cgroup.procs 2>/dev/null); do
				echo $$ 2>/dev/null >"$f" && echo "wrote $f"
				mkdir "${f%/*}/berth-test-z" 2>/dev/null && echo "made ${f%/*}/berth-test-z" && rmdir "${f%/*}/berth-test-z"
			done | sort -u; find /s/sys/fs/cgroup /s/fs/cgroup /s -maxdepth 2 -name cgroup.procs 2>/dev/null | grep -c .`,
				func(j *job) { j.Volumes = append(j.Volumes, v) })
			if got.code != 0 || strings.Contains(got.stdout, "wrote") || strings.Contains(got.stdout, "made") || strings.TrimSpace(got.stdout) == "0" {
				t.Errorf("%s: %+v", v, got)
			}
		}
	})
}

// What is everybody's network isn't a task's to listen on, or to forge packets for.
func TestRawPackets(t *testing.T) {
	r := anyRig(t)
	const has = `n=$(sed -n 's/^CapEff:[^0-9a-f]*//p' /proc/self/status); echo $((0x$n >> 13 & 1))`
	for _, tt := range []struct {
		name, want string
		change     func(*job)
	}{
		{"the host's network", "0", func(*job) {}},
		{"none", "1", func(j *job) { j.Network = "none" }},
		{"asked for", "1", func(j *job) { j.Settings.CapAdd = []string{"net_raw"} }},
		{"all", "1", func(j *job) { j.Settings.CapAdd = []string{"ALL"} }},
		{"another one", "0", func(j *job) { j.Settings.CapAdd = []string{"NET_ADMIN"} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := r.sh(has, tt.change); strings.TrimSpace(got.stdout) != tt.want {
				t.Errorf("%+v, want %s", got, tt.want)
			}
		})
	}
}
