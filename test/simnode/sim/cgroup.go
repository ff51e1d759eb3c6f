package sim

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// mountCgroups shows the machine's cgroups as a pure v1 or v2 machine would.
// They are the real ones: the kernel has one hierarchy of each.
func mountCgroups(mode string) error {
	switch mode {
	case "v1":
		return mountV1()
	case "v2":
		return mountV2()
	}
	return nil
}

func mountV2() error {
	if isV2(cgroupRoot) {
		return nil
	}
	if err := unix.Unmount(cgroupRoot, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", cgroupRoot, err)
	}
	if err := unix.Mount("cgroup2", cgroupRoot, "cgroup2", 0, ""); err != nil {
		return fmt.Errorf("mount cgroup2: %w", err)
	}
	return nil
}

func mountV1() error {
	if isV2(cgroupRoot) {
		return makeV1()
	}
	unified := filepath.Join(cgroupRoot, "unified")
	if !isV2(unified) {
		return nil
	}
	if err := unix.Unmount(unified, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", unified, err)
	}
	// What is below it is the machine's, and crun makes directories there.
	if err := unix.Mount("tmpfs", unified, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755"); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", unified, err)
	}
	return nil
}

func isV2(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// makeV1 mounts those v1 controllers that a v2 machine leaves free: at least
// devices, which v2 doesn't have.
func makeV1() error {
	if err := unix.Mount("tmpfs", cgroupRoot, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", cgroupRoot, err)
	}
	names, err := controllers()
	if err != nil {
		return err
	}
	for _, name := range append(names, "name=systemd") {
		dir := filepath.Join(cgroupRoot, strings.TrimPrefix(name, "name="))
		if err := makeDirs(dir); err != nil {
			return err
		}
		options := name
		if strings.HasPrefix(name, "name=") {
			options = "none," + name
		}
		err := unix.Mount("cgroup", dir, "cgroup", 0, options)
		if err != nil && name == "devices" {
			return errors.New("this machine has cgroup v2 only: its kernel has no v1 device controller")
		}
		if err != nil {
			if err := os.Remove(dir); err != nil {
				return fmt.Errorf("remove: %w", err)
			}
		}
	}
	return nil
}

func controllers() (names []string, err error) {
	f, err := os.Open("/proc/cgroups")
	if err != nil {
		return nil, fmt.Errorf("open list of cgroup controllers: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 4 && fields[3] == "1" && !strings.HasPrefix(fields[0], "#") {
			names = append(names, fields[0])
		}
	}
	return names, lines.Err()
}
