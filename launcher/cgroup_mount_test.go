package launcher

import (
	"strings"
	"testing"
)

// Root in a container can't leave its cgroup, whichever of the host's directories are bound.
func TestBoundCgroupsAreReadOnly(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
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

// A task can't write to the kernel's files by a bind mount of them, nor see others' processes.
func TestBoundKernelFiles(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		for volume, file := range map[string]string{
			"/sys:/s":           "/s/kernel/mm/transparent_hugepage/enabled",
			"/sys/kernel/mm:/s": "/s/transparent_hugepage/enabled",
			"/:/s":              "/s/sys/kernel/mm/transparent_hugepage/enabled",
			"/proc/sys:/s":      "/s/kernel/core_pattern",
		} {
			got := r.sh("cat "+file+" >/dev/null && ! cat "+file+" 2>/dev/null 1<>"+file, func(j *job) { j.Volumes = append(j.Volumes, volume) })
			if got.code != 0 {
				t.Errorf("%s: %+v", volume, got)
			}
		}
		got := r.sh("ls -A /s/proc | wc -l", func(j *job) { j.Volumes = append(j.Volumes, "/:/s") })
		if got.code != 0 || strings.TrimSpace(got.stdout) != "0" {
			t.Errorf("the host's processes are seen: %+v", got)
		}
		for volume, want := range map[string]string{
			"/proc:/s":           "a task that sees others' processes",
			"/proc/self:/s":      "a task that sees others' processes",
			"/proc/self/root:/s": "it leads through a link to a process's files",
		} {
			got := r.sh("true", func(j *job) { j.Volumes = append(j.Volumes, volume) })
			if got.code == 0 || !strings.Contains(got.stderr, want) {
				t.Errorf("%s: %+v", volume, got)
			}
		}
	})
}

// What is everybody's network isn't a task's to listen on, or to forge packets for.
func TestRawPackets(t *testing.T) {
	r := newAnyRig(t)
	const has = `n=$(sed -n 's/^CapEff:[^0-9a-f]*//p' /proc/self/status); echo $((0x$n >> 13 & 1))`
	for _, tt := range []struct {
		name, want string
		change     func(*job)
	}{
		{"the host's network", "0", func(*job) {}},
		{"none", "1", func(j *job) { j.Network = "none" }},
		{"asked for", "1", func(j *job) { j.CapAdd = []string{"net_raw"} }},
		{"all", "1", func(j *job) { j.CapAdd = []string{"ALL"} }},
		{"another one", "0", func(j *job) { j.CapAdd = []string{"NET_ADMIN"} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := r.sh(has, tt.change); strings.TrimSpace(got.stdout) != tt.want {
				t.Errorf("%+v, want %s", got, tt.want)
			}
		})
	}
}
