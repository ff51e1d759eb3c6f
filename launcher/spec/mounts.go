package spec

import (
	"maps"
	"slices"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// mounts are the kernel's file systems, the task's own files, and the user's
// mounts, in this order: the user has the last word.
func mounts(t Task) []specs.Mount {
	shm := []string{"nosuid", "noexec", "nodev", "mode=1777"}
	if t.Limits.Shm > 0 {
		shm = append(shm, "size="+strconv.FormatInt(t.Limits.Shm, 10))
	}
	all := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: shm},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
	}
	if t.HostIPC {
		t.Shm = "/dev/shm"
	}
	if t.Shm != "" {
		bind := []string{"rbind", "rprivate", "nosuid", "noexec", "nodev"}
		all[3] = specs.Mount{Destination: "/dev/shm", Type: "bind", Source: t.Shm, Options: bind}
	}
	if t.Exposed {
		for i := range all {
			all[i].Options = slices.DeleteFunc(all[i].Options, func(o string) bool { return o == "ro" })
		}
	}
	for _, dst := range slices.Sorted(maps.Keys(t.Files)) {
		all = append(all, specs.Mount{
			Destination: dst, Type: "bind", Source: t.Files[dst],
			Options: []string{"bind", "rprivate", "nosuid", "nodev"},
		})
	}
	return append(all, t.Mounts...)
}

// maskedPaths are files that tell about, or reach into, the host.
func maskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
		"/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list",
		"/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
	}
}
