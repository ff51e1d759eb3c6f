package imagemount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// MountExt3 returns a detached mount of the ext3 file system in size bytes of a file from offset, for root of the machine. No process is left: when the last copy of
// the mount has ended, the kernel releases the loop device, and with it the opening of the file. So a lock of [LockLayer] on this opening lasts as long as the mount.
//
// The kernel reads and writes the file system. Its parsers don't expect that the file changes while it is mounted, so the caller ensures that root alone can change it. For root that has advantages over fuse2fs and fuse-overlayfs, which users have: no file of root's must be opened to a server without rights, owners are those in
// the file system, and a kernel's overlay above it is as fast as above a directory.
func MountExt3(f *os.File, offset, size int64, writable bool) (tree *os.File, err error) {
	device, err := attachLoop(f, offset, size, writable)
	if err != nil {
		return nil, fmt.Errorf("mount an overlay: %w", err)
	}
	defer device.Close()                                  // the mount has it open
	fsfd, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC) // ext4 mounts ext2 and ext3, too
	if err != nil {
		return nil, fmt.Errorf("mount an overlay as ext4: %w", err)
	}
	defer func() { _ = unix.Close(fsfd) }() // nothing was written
	attributes := unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID
	err = errors.Join(
		unix.FsconfigSetString(fsfd, "source", device.Name()),
		unix.FsconfigSetString(fsfd, "errors", "remount-ro"), // the file system itself may say that the machine panics
	)
	if !writable {
		attributes |= unix.MOUNT_ATTR_RDONLY
		err = errors.Join(err, unix.FsconfigSetFlag(fsfd, "ro"))
	}
	if err != nil {
		return nil, fmt.Errorf("mount an overlay: %w", err)
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		if !writable && errors.Is(err, unix.EROFS) {
			err = errors.New("it wasn't unmounted: a command that writes to it repairs that")
		}
		return nil, fmt.Errorf("mount an overlay: %w%s", err, readMessages(fsfd))
	}
	fd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return nil, fmt.Errorf("mount an overlay: %w", err)
	}
	return os.NewFile(uintptr(fd), "overlay"), nil
}

// attachLoop returns an open loop device of a part of a file. It ends with its last opening or mount.
func attachLoop(f *os.File, offset, size int64, writable bool) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("there are no loop devices: %w", err)
	}
	defer control.Close()                                                    // nothing is written
	config := unix.LoopConfig{Fd: uint32(f.Fd())}                            //nolint:gosec // a descriptor
	config.Info.Offset, config.Info.Sizelimit = uint64(offset), uint64(size) //nolint:gosec // not negative
	config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	flags := os.O_RDWR
	if !writable {
		config.Info.Flags |= unix.LO_FLAGS_READ_ONLY
		flags = os.O_RDONLY
	}
	const tries = 64 // another process may take a free device
	for range tries {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		device, err := os.OpenFile("/dev/loop"+strconv.Itoa(number), flags|unix.O_CLOEXEC, 0)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) {
			return nil, fmt.Errorf("this /dev lacks a loop device: %w", err)
		}
		if err != nil {
			return nil, err
		}
		if err = unix.IoctlLoopConfigure(int(device.Fd()), &config); err == nil {
			return device, nil
		}
		_ = device.Close() // nothing was written
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("attach a loop device: %w", err)
		}
	}
	return nil, fmt.Errorf("attach a loop device: %w", unix.EBUSY)
}

// readMessages returns what the kernel says about a mount that fails, with a separator before it. Source: the kernel's Documentation/filesystems/mount_api.rst.
func readMessages(fsfd int) (text string) {
	for range 8 {
		var line [256]byte
		n, err := unix.Read(fsfd, line[:])
		if err != nil || n <= 2 {
			return text
		}
		text += "; " + string(line[2:n]) // behind the severity
	}
	return text
}
