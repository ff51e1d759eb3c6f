// Command guest is the first process of a kernel with project quotas: it tries what berth does with
// them on the disks that the environment names (disk0=TYPE, disk1=TYPE), says "passed" if all is
// well, and switches the machine off.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/projectquota"
)

func main() {
	err := try()
	if err == nil {
		fmt.Println("guest: passed")
	} else {
		fmt.Println("guest: failed:", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) // the kernel panics without a first process
}

func try() error {
	for _, name := range []string{"quota_tree", "quota_v2", "overlay"} {
		if err := loadModule(name); err != nil {
			return fmt.Errorf("load module %s: %w", name, err)
		}
	}
	if err := unix.Mount("tmpfs", "/tmp", "tmpfs", 0, ""); err != nil {
		return err
	}
	const major, minorsOfDisk = 98, 16
	for number := range 2 {
		device, kind := fmt.Sprintf("/tmp/disk%d", number), os.Getenv(fmt.Sprintf("disk%d", number))
		if err := unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(major, uint32(number*minorsOfDisk)))); err != nil {
			return err
		}
		if err := tryDisk(device, kind); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	return nil
}

func loadModule(name string) error {
	found, err := filepath.Glob("/usr/lib/uml/modules/*/kernel/fs/*/" + name + ".ko*")
	if err != nil || len(found) != 1 {
		return fmt.Errorf("%d files, %w", len(found), err)
	}
	f, err := os.Open(found[0])
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if !strings.HasSuffix(found[0], ".ko") {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	return unix.FinitModule(int(f.Fd()), "", flags)
}

const (
	disk  = "/srv"
	limit = 4 << 20
)

func tryDisk(device, kind string) error {
	if err := unix.Mount(device, disk, kind, 0, ""); err != nil {
		return fmt.Errorf("mount without quotas: %w", err)
	}
	err := projectquota.Limit(limit, disk)
	if !errors.Is(err, projectquota.ErrUnsupported) || !strings.Contains(err.Error(), "-o prjquota") {
		return fmt.Errorf("without quotas: %w", err)
	}
	if err := unix.Unmount(disk, 0); err != nil {
		return err
	}
	if err := unix.Mount(device, disk, kind, 0, "prjquota"); err != nil {
		return fmt.Errorf("mount with quotas: %w", err)
	}
	for _, step := range []func() error{tryLimit, tryRelease} {
		if err := step(); err != nil {
			return err
		}
	}
	return unix.Unmount(disk, 0)
}

func dir(name string) string { return filepath.Join(disk, name) }

// tryLimit has a root of a container written to, of which the upper layer is bounded.
func tryLimit() error {
	for _, name := range []string{"lower", "upper", "work", "root", "other"} {
		if err := os.Mkdir(dir(name), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(dir("lower/file"), make([]byte, 1<<20), 0o644); err != nil {
		return err
	}
	if err := projectquota.Limit(limit, dir("upper"), dir("work")); err != nil {
		return err
	}
	options := "lowerdir=" + dir("lower") + ",upperdir=" + dir("upper") + ",workdir=" + dir("work")
	if err := unix.Mount("overlay", dir("root"), "overlay", 0, options); err != nil {
		return fmt.Errorf("mount overlay: %w", err)
	}
	if err := os.Mkdir(dir("root/sub"), 0o755); err != nil {
		return err
	}
	if err := write(dir("root/sub/one"), 2<<20); err != nil {
		return fmt.Errorf("below the limit: %w", err)
	}
	if err := os.Chmod(dir("root/file"), 0o600); err != nil { // copies it up
		return fmt.Errorf("copy up: %w", err)
	}
	err := write(dir("root/two"), 2<<20)
	if !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("beyond the limit: %w", err)
	}
	if err := write(dir("other/file"), 8<<20); err != nil {
		return fmt.Errorf("outside of the project: %w", err)
	}
	if err := tryManyFiles(); err != nil {
		return err
	}
	return unix.Unmount(dir("root"), 0)
}

// tryManyFiles: empty files are bounded, too.
func tryManyFiles() error {
	const few, many = 900, 1100
	for _, name := range []string{"root/sub/one", "root/two"} { // directories need blocks, too
		if err := os.Remove(dir(name)); err != nil {
			return err
		}
	}
	for i := range many {
		err := os.WriteFile(dir(fmt.Sprintf("root/sub/empty%d", i)), nil, 0o600)
		if full := errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOSPC); full && i > few {
			return nil
		}
		if err != nil {
			return fmt.Errorf("empty file %d: %w", i, err)
		}
	}
	return fmt.Errorf("the project has %d files", many)
}

// tryRelease: without its limit the project can have more.
func tryRelease() error {
	for _, name := range []string{"upper", "other"} { // which has no project
		if err := projectquota.Release(dir(name)); err != nil {
			return fmt.Errorf("release: %w", err)
		}
	}
	if err := write(dir("upper/three"), 8<<20); err != nil {
		return fmt.Errorf("without the limit: %w", err)
	}
	return nil
}

// write writes to the disk, where XFS notices at last.
func write(path string, bytes int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, bytes))
	return errors.Join(err, f.Sync(), f.Close())
}
