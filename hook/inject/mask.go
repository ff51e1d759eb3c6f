package inject

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/mounttree"
)

// maskPath makes a path unreadable as runtimes do: it mounts /dev/null over a file, and
// an empty read-only file system over a directory. A missing path needs no mask.
func (s *openContainer) maskPath(name string) error {
	at, err := inroot.Open(s.root, name, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer at.Close() // an O_PATH descriptor
	return mounttree.Mask(at, s.cloneNull)
}

// makeReadOnly mounts a path over itself, read-only, as runtimes do. Mounts below it stay
// as they are. A missing path is passed over.
func (s *openContainer) makeReadOnly(name string) error {
	at, err := inroot.Open(s.root, name, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer at.Close() // an O_PATH descriptor
	const clone = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_RECURSIVE | unix.AT_EMPTY_PATH
	fd, err := unix.OpenTree(int(at.Fd()), "", clone)
	if err != nil {
		return fmt.Errorf("clone mount: %w", err)
	}
	tree := os.NewFile(uintptr(fd), name)
	defer tree.Close() // attached by then, or of no use
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("set flags: %w", err)
	}
	return mounttree.Attach(tree, at)
}

func (s *openContainer) cloneNull() (*os.File, error) {
	return runOutside(func() (*os.File, error) { return mounttree.Clone("/dev/null", false) })
}
