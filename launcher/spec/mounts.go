package spec

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// linuxMounts returns the kernel's file systems, the container's own files and the user's mounts, in
// this order, so that the user's mounts cover the others.
func linuxMounts(c Container) []specs.Mount {
	shm := []string{"nosuid", "noexec", "nodev", "mode=1777"}
	if c.Resources.Shm > 0 {
		shm = append(shm, "size="+strconv.FormatInt(c.Resources.Shm, 10))
	}
	all := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		// One container must not use up the machine's terminals: kernel.pty.max is 4096.
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", "max=256"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: shm},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
	}
	if c.HostIPC {
		c.Shm = "/dev/shm"
	}
	if c.Shm != "" {
		bind := []string{"rbind", "rprivate", "nosuid", "noexec", "nodev"}
		all[3] = specs.Mount{Destination: "/dev/shm", Type: "bind", Source: c.Shm, Options: bind}
	}
	if c.Exposed {
		for i := range all {
			all[i].Options = slices.DeleteFunc(all[i].Options, func(o string) bool { return o == "ro" })
		}
	}
	for _, dst := range slices.Sorted(maps.Keys(c.Files)) {
		all = append(all, specs.Mount{
			Destination: dst, Type: "bind", Source: c.Files[dst],
			Options: []string{"bind", "rprivate", "nosuid", "nodev"},
		})
	}
	return append(all, c.Mounts...)
}

// maskedPaths returns paths that would expose the host or change it.
func maskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
		"/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list",
		"/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
	}
}

// ThermalPaths returns the directories of each CPU that are a side channel between containers
// (GHSA-6fw5-f8r9-fgfm). Only existing ones are returned, because each becomes a mount. cpus is
// /sys/devices/system/cpu. filepath.Glob would read the directories of all CPUs.
func ThermalPaths(cpus string) []string {
	entries, err := os.ReadDir(cpus)
	if err != nil {
		return nil // a container has no such directory either
	}
	var paths []string
	for _, e := range entries {
		if n, ok := strings.CutPrefix(e.Name(), "cpu"); !ok || strings.Trim(n, "0123456789") != "" {
			continue
		}
		path := filepath.Join(cpus, e.Name(), "thermal_throttle")
		if _, err := os.Lstat(path); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}
