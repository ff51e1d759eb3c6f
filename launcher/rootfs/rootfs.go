// Package rootfs accesses a container's root file system, which is untrusted.
//
// A root can contain any link, FIFO or device at any path. Every name is therefore resolved by the kernel
// with the given directory as "/" (openat2 with RESOLVE_IN_ROOT, Linux 5.6), and only regular files are
// read, up to a limit. No path that was checked is resolved a second time.
//
// If the root is changed concurrently, callers get a consistent file, but not a consistent tree.
package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
)

// Open opens a container's root with O_PATH, to resolve names below it.
func Open(dir string) (*os.File, error) {
	return inroot.OpenRoot(dir)
}

// ReadFile returns the content of a regular file inside root. A file that is
// larger than limit, or isn't regular, is an error.
func ReadFile(root *os.File, name string, limit int64) ([]byte, error) {
	data, err := inroot.ReadFile(root, strings.TrimLeft(name, "/"), limit)
	switch {
	case errors.Is(err, inroot.ErrTooLarge):
		return nil, fmt.Errorf("read %s in the image: larger than %d bytes", name, limit)
	case errors.Is(err, inroot.ErrNotRegular):
		return nil, fmt.Errorf("open %s in the image: not a regular file", name)
	case err != nil:
		return nil, fmt.Errorf("read %s in the image: %w", name, err)
	}
	return data, nil
}

// MkdirAll creates a directory inside root, and its parents, with mode 0755. An existing directory stays
// as it is.
func MkdirAll(root *os.File, name string) error {
	d, err := mkdirAll(root, path.Clean("/"+name))
	if err != nil {
		return fmt.Errorf("make directory %s in the container: %w", name, err)
	}
	return d.Close()
}

func mkdirAll(root *os.File, clean string) (*os.File, error) {
	d, err := openInRoot(root, clean, unix.O_DIRECTORY)
	if !errors.Is(err, unix.ENOENT) || clean == "/" {
		return d, err
	}
	parent, err := mkdirAll(root, path.Dir(clean))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	err = unix.Mkdirat(int(parent.Fd()), path.Base(clean), 0o755)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	return openInRoot(root, clean, unix.O_DIRECTORY)
}
