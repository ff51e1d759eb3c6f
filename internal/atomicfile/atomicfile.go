// Package atomicfile replaces files in one step: a reader sees the old content
// or the new, never a part, and a writer that is killed leaves the old one.
//
// It does not follow or protect against hostile paths: the directory must be
// one that only trusted users can write to.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Options of [Write]. The zero value renames a temporary file of a random name
// over the target and leaves it to the kernel when that reaches the disk.
type Options struct {
	// Sync flushes the file before it is renamed, and the directory afterwards,
	// so that the new content survives a power failure. It buys nothing where
	// [Volatile] is true.
	Sync bool
	// FixedTemp names the temporary file path + ".tmp" instead of at random. Only
	// for callers that hold a lock on path: what a killed writer left is then
	// overwritten by the next one and can't pile up.
	FixedTemp bool
}

// Write replaces the file at path by one with this content and exactly these
// permissions, whatever the umask. A symbolic link at path is replaced, not
// followed. On error the old file is untouched and no temporary file is left.
func Write(path string, data []byte, perm fs.FileMode, o Options) error {
	f, err := temp(path, o.FixedTemp)
	if err != nil {
		return err
	}
	err = fill(f, data, perm, o.Sync)
	if err == nil {
		err = rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	if o.Sync {
		return syncDir(filepath.Dir(path))
	}
	return nil
}

// Volatile says that the directory is on a file system that a reboot empties
// (tmpfs, ramfs). An error counts as no.
func Volatile(dir string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false
	}
	return st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC
}

func temp(path string, fixed bool) (*os.File, error) {
	if !fixed {
		return os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".tmp-*")
	}
	return os.OpenFile(path+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
}

func fill(f *os.File, data []byte, perm fs.FileMode, sync bool) error {
	_, err := f.Write(data)
	if err == nil {
		err = f.Chmod(perm)
	}
	if err == nil && sync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// rename is os.Rename without its extra look at the target, which the kernel
// takes itself: a directory isn't replaced by a file.
func rename(from, to string) error {
	if err := unix.Rename(from, to); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}
