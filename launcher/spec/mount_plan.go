package spec

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/isolation/binds"
	"github.com/berth-gpu/berth/launcher/rootfs"
)

// sortMounts sorts mounts such that each comes after the mounts above it. Two mounts at one destination
// are an error.
func sortMounts(mounts []specs.Mount) error {
	seen := map[string]bool{}
	for _, m := range mounts {
		if seen[m.Destination] {
			return fmt.Errorf("two mounts at %s in the container; leave one out", m.Destination)
		}
		seen[m.Destination] = true
	}
	slices.SortStableFunc(mounts, func(a, b specs.Mount) int {
		return strings.Count(a.Destination, "/") - strings.Count(b.Destination, "/")
	})
	return nil
}

// PlanMounts returns a container's mounts in the order in which they are made. volumes are in the form
// of [ParseVolume]. files is the directory of files that containers share.
func PlanMounts(volumes []string, others []specs.Mount, files shared.Dir) ([]specs.Mount, error) {
	var all []specs.Mount
	for _, v := range volumes {
		m, err := ParseVolume(v)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	all = append(all, others...)
	if err := checkDestinations(all); err != nil {
		return nil, err
	}
	if err := sortMounts(all); err != nil {
		return nil, err
	}
	return restrictBinds(all, files)
}

// IsCovered reports whether a path lies at or below the destination of a mount.
func IsCovered(mounts []specs.Mount, p string) bool {
	return slices.ContainsFunc(mounts, func(m specs.Mount) bool {
		return p == m.Destination || strings.HasPrefix(p, m.Destination+"/")
	})
}

// checkDestinations returns an error for destinations in the kernel's file systems where runtimes can't
// mount, or where the mount wouldn't work.
func checkDestinations(mounts []specs.Mount) error {
	for _, m := range mounts {
		dst := m.Destination
		switch {
		case isBelow(dst, "/proc") && !slices.Contains(replaceableProcFiles(), dst):
			return fmt.Errorf("%s can't be mounted on %s, where the task sees its own processes; mount it elsewhere, such as on /host%s", describeSource(m), dst, dst)
		case m.Type == "tmpfs" && dst == "/dev":
			return fmt.Errorf("%s can't be mounted on /dev, which has the task's devices; /dev/shm is memory already", describeSource(m))
		case isBelow(dst, "/sys") && !pathExists(dst):
			return fmt.Errorf("%s can't be mounted on %s, which doesn't exist: only the kernel creates directories in /sys", describeSource(m), dst)
		}
	}
	return nil
}

// replaceableProcFiles returns the files of procfs on which runtimes allow mounts. LXCFS provides such
// files for programs that count CPUs and memory.
func replaceableProcFiles() []string {
	return []string{
		"/proc/cpuinfo", "/proc/diskstats", "/proc/loadavg", "/proc/meminfo", "/proc/slabinfo", "/proc/stat",
		"/proc/swaps", "/proc/uptime",
	}
}

// describeSource names a mount's source in an error.
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

// CheckMountPoints returns an error if a directory would be mounted on a file, or a file on a directory.
// files are the bind mounts of [EtcFiles]. Destinations in /proc, /sys and /dev are left to the runtime,
// because these file systems aren't mounted in root yet.
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
		if there, found := rootfs.FileType(root, before, m.Destination); found && !kernels {
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
			return fmt.Errorf("stat source of mount: %w", err)
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

// checkSource returns an error if the source of a bind mount doesn't exist. The source isn't created,
// because a mistyped name would become an empty directory.
func checkSource(src string) error {
	_, err := os.Stat(src)
	switch name := path.Base(src); {
	case !os.IsNotExist(err):
	case strings.Contains(src, "/~"):
		return fmt.Errorf("%w; the shell replaces no ~ within quotes: $HOME stands for the home directory", err)
	case !strings.HasSuffix(name, ".sock"): // a directory in the place of a socket keeps its server from starting
		return fmt.Errorf("%w; for an empty directory: mkdir -p %s", err, src)
	}
	return err
}

// checkKernelDir returns an error for a working directory in /proc or /sys that doesn't exist, because
// it can't be created.
func checkKernelDir(dir string) error {
	dir = path.Clean(dir)
	if !isBelow(dir, "/proc") && !isBelow(dir, "/sys") {
		return nil
	}
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return fmt.Errorf("working directory %s doesn't exist, and only the kernel creates directories there", dir)
	}
	return nil
}

// restrictBinds restricts bind mounts of kernel file systems and of the driver's files, see package
// binds. files is the directory of files that containers share.
func restrictBinds(mounts []specs.Mount, files shared.Dir) ([]specs.Mount, error) {
	if !slices.ContainsFunc(mounts, func(m specs.Mount) bool { return m.Type == "bind" }) {
		return mounts, nil
	}
	table, err := binds.ReadTable()
	if err != nil {
		return nil, err
	}
	h := binds.Host{Table: table, HideProcesses: true}
	if binds.Reaches(mounts, "/", files.Source) {
		// The files aren't mounted if no GPU was leased since the boot. The wait for the lock is limited.
		if _, err := files.MountIfSupported(context.Background()); err != nil {
			return nil, err
		}
	}
	if files.IsMounted() {
		h.Files, h.FilesMount = files.Source, files.Mount
	}
	all, _, err := h.Restrict(mounts)
	return all, err
}

// isBelow reports whether path is dir or lies below it.
func isBelow(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, "/"))
	return ok && (rest == "" || rest[0] == '/')
}
