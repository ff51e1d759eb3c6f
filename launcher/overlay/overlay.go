// Package overlay mounts root file systems from shared layers and a writable directory.
//
// It mounts in the mount namespace of the calling thread and unmounts nothing: the caller makes a private
// namespace first ([UnshareMounts]), and the mount ends with the last process in it. A launcher that is
// killed leaves no mount.
package overlay

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/userns"
)

// MaxLayers is the maximum number of layers of a root. The kernel allows 500, and options of one page.
const MaxLayers = 200

// ErrUpper means that overlayfs most likely doesn't support the file system of the writable directory,
// such as another overlay, NFS or most FUSE file systems.
var ErrUpper = errors.New("its file system can't be the writable layer of an overlay")

// Layers of a root. Lower are topmost first. Upper, the writable directory, and Work are on one file
// system, which must not be overlayfs.
type Layers struct {
	Lower       []string
	Upper, Work string
	// Lasting means that the writable directory is mounted again later. Otherwise it is mounted with the
	// option volatile, which works only once.
	Lasting bool
}

// MountShm mounts a tmpfs at a directory that several containers share as /dev/shm. size is in bytes; 0
// means half of the machine's memory.
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

// Mount mounts the layers at target, with nodev, so that device nodes of an image can't be opened. That
// is a second line behind the device rules: crun removes nodev when it remounts the root.
//
// Directories are passed to the kernel as paths of descriptors, so that neither special characters in
// their names nor their lengths matter.
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
	// volatile (Linux 5.10) avoids syncs of data that is discarded.
	volatile := ",volatile"
	if l.Lasting {
		volatile = ""
	}
	if userns.IsInside() {
		options += ",userxattr"
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

// BindMount makes a recursive bind mount of dir at target with nodev. It sets nodev by mount_setattr
// (Linux 5.12), because a remount would make a read-only source writable.
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

// OpaqueAttribute returns the extended attribute of a directory of a layer that hides the directory's content of the layers
// below. Root of a user namespace can't set the one that root of the machine uses. Its value is "y".
// Source: the kernel's Documentation/filesystems/overlayfs.rst, "User xattr".
func OpaqueAttribute() string {
	if userns.IsInside() {
		return "user.overlay.opaque"
	}
	return "trusted.overlay.opaque"
}

// IsOpaque reports whether a layer hides all layers below it. The kernel ignores the attribute on the
// root of a layer, so the caller must omit the lower layers.
func IsOpaque(dir string) bool {
	var value [1]byte
	n, err := unix.Lgetxattr(dir, OpaqueAttribute(), value[:])
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
		f.Close() // an O_PATH descriptor
	}
}
