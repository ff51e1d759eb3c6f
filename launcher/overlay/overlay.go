// Package overlay mounts a root file system out of shared layers and a writable
// directory that is thrown away.
//
// It mounts into the mount namespace of the calling thread and undoes nothing:
// whoever calls has made a private namespace first ([UnshareMounts]), and the mount
// ends with the last process in it. A launcher that is killed leaves no mount.
package overlay

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxLayers is how many layers one root can have. The kernel takes 500 and one
// page of options.
const MaxLayers = 200

// ErrUpper: overlayfs most likely can't write to the file system of the writable directory,
// as to another overlay, NFS or most file systems of FUSE.
var ErrUpper = errors.New("its file system can't be the writable layer of an overlay")

// Layers of a root: Lower ones topmost first, and the writable directory with
// its work directory on the same file system, which is none of overlayfs's own.
type Layers struct {
	Lower       []string
	Upper, Work string
	// Lasting: the writable directory outlives the mount. The kernel mounts one that is thrown
	// away (volatile) only once.
	Lasting bool
}

// MountShm mounts memory at a directory that several containers share as /dev/shm. A size of 0
// is half of the machine's memory.
func MountShm(at string, size int64) error {
	options := "mode=1777"
	if size > 0 {
		options += ",size=" + strconv.FormatInt(size, 10)
	}
	if err := unix.Mount("shm", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return &os.PathError{Op: "mount shared memory at", Path: at, Err: err}
	}
	return nil
}

// UnshareMounts gives the calling thread a mount namespace of its own. Mounts made there aren't
// visible outside; unmounts of the host propagate into it. The goroutine must be locked to its
// thread, and never be unlocked again.
func UnshareMounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return nil
}

// Mount mounts the layers at target, with nodev: device nodes that came with an
// image open nothing. It is a second line behind the device rules, and crun takes
// it off again when it remounts its root.
//
// Directories are given to the kernel as open descriptors, so neither the
// characters in their names nor their lengths matter.
func Mount(target string, l Layers) error {
	if len(l.Lower) == 0 || len(l.Lower) > MaxLayers {
		return fmt.Errorf("mount overlay: %d layers, not between 1 and %d", len(l.Lower), MaxLayers)
	}
	var fds descriptors
	defer fds.close()
	lower := make([]string, len(l.Lower))
	for i, dir := range l.Lower {
		lower[i] = fds.openDir(dir)
	}
	options := "lowerdir=" + strings.Join(lower, ":") +
		",upperdir=" + fds.openDir(l.Upper) + ",workdir=" + fds.openDir(l.Work)
	if fds.err != nil {
		return fmt.Errorf("mount overlay: %w", fds.err)
	}
	// volatile (Linux 5.10): what is thrown away need not reach the disk.
	volatile := ",volatile"
	if l.Lasting {
		volatile = ""
	}
	err := unix.Mount("overlay", target, "overlay", unix.MS_NODEV, options+volatile)
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("overlay", target, "overlay", unix.MS_NODEV, options)
	}
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w: %w", ErrUpper, err)
	}
	if err != nil {
		return fmt.Errorf("mount overlay of %d layers with writes to %s: %w", len(l.Lower), l.Upper, err)
	}
	return nil
}

// BindMount makes dir itself appear at target, with nodev and all that is mounted in it
// (mount_setattr, Linux 5.12: a remount would undo a read-only source).
func BindMount(target, dir string) error {
	if err := unix.Mount(dir, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", dir, err)
	}
	nodev := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_RECURSIVE, &nodev); err != nil {
		return fmt.Errorf("bind %s without devices: %w", dir, err)
	}
	return nil
}

// IsOpaque reports whether a layer hides all layers below it. The kernel ignores the attribute on
// the root of a layer, so the caller must leave the lower ones out.
func IsOpaque(dir string) bool {
	var value [1]byte
	n, err := unix.Lgetxattr(dir, "trusted.overlay.opaque", value[:])
	return err == nil && n == 1 && value[0] == 'y'
}

type descriptors struct {
	files []*os.File
	err   error
}

func (d *descriptors) openDir(dir string) string {
	f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		d.err = errors.Join(d.err, err)
		return ""
	}
	d.files = append(d.files, f)
	return "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
}

func (d *descriptors) close() {
	for _, f := range d.files {
		f.Close() // O_PATH: there is nothing that could fail to be written
	}
}
