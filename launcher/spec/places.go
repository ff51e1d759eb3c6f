package spec

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/launcher/rootfs"
)

// checkDestinations fails for mounts where none can be, of which a runtime would say so in its
// own words, or which it would make.
func checkDestinations(mounts []specs.Mount) error {
	for _, m := range mounts {
		dst := m.Destination
		switch {
		case isBelow(dst, "/proc") && !slices.Contains(replaceableProcFiles(), dst):
			return fmt.Errorf("%s can't be mounted on %s, where the task sees its own processes; another place can be had, such as /host%s", describeSource(m), dst, dst)
		case m.Type == "tmpfs" && dst == "/dev":
			return fmt.Errorf("%s can't be mounted on /dev, which has the task's devices; /dev/shm is memory already", describeSource(m))
		case isBelow(dst, "/sys") && !pathExists(dst):
			return fmt.Errorf("%s can't be mounted on %s, which isn't there: in /sys, only the kernel makes directories", describeSource(m), dst)
		}
	}
	return nil
}

// replaceableProcFiles are the files of procfs that runtimes let others be mounted on, for
// programs that count CPUs and memory.
func replaceableProcFiles() []string {
	return []string{
		"/proc/cpuinfo", "/proc/diskstats", "/proc/loadavg", "/proc/meminfo", "/proc/slabinfo", "/proc/stat",
		"/proc/swaps", "/proc/uptime",
	}
}

// describeSource is what is mounted, as people call it.
func describeSource(m specs.Mount) string {
	if m.Type == "bind" {
		return m.Source
	}
	return m.Type
}

func pathExists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// CheckMountPoints fails where a directory would be mounted on a file, or a file on a directory.
// files are those that every task has. What the kernel has in /proc, /sys and /dev isn't in
// root, and is left to the runtime.
func CheckMountPoints(root *os.File, files map[string]string, mounts []specs.Mount) error {
	if len(mounts) == 0 {
		return nil
	}
	var before []rootfs.Mount
	for dst, src := range files {
		before = append(before, rootfs.Mount{At: dst, Source: src})
	}
	for _, m := range mounts {
		kernels := slices.ContainsFunc([]string{"/proc", "/sys", "/dev"}, func(dir string) bool { return isBelow(m.Destination, dir) })
		if there, found := rootfs.Kind(root, before, m.Destination); found && !kernels {
			if err := checkKind(m, there); err != nil {
				return err
			}
		}
		before = append(before, rootfs.Mount{At: m.Destination, Source: m.Source})
	}
	return nil
}

func checkKind(m specs.Mount, there fs.FileMode) error {
	dir := m.Type != "bind"
	if !dir {
		fi, err := os.Stat(m.Source)
		if err != nil {
			return fmt.Errorf("look at what is to be mounted: %w", err)
		}
		dir = fi.IsDir()
	}
	switch {
	case dir && !there.IsDir():
		return fmt.Errorf("%s can't be mounted on %s: it is a directory, and in the container there is a file", describeSource(m), m.Destination)
	case !dir && there.IsDir():
		return fmt.Errorf("%s can't be mounted on %s: it is a file, and in the container there is a directory", describeSource(m), m.Destination)
	}
	return nil
}

// checkSource looks at what is to be bound, which isn't made: a name that was mistyped
// would be an empty directory.
func checkSource(src string) error {
	_, err := os.Stat(src)
	if os.IsNotExist(err) {
		return fmt.Errorf("%w; if it is to be an empty directory: mkdir -p %s", err, src)
	}
	return err
}

// checkKernelDir fails for a working directory that the kernel hasn't got and nobody can make.
func checkKernelDir(dir string) error {
	dir = path.Clean(dir)
	if !isBelow(dir, "/proc") && !isBelow(dir, "/sys") {
		return nil
	}
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return fmt.Errorf("working directory %s isn't there, and only the kernel makes directories in it", dir)
	}
	return nil
}
