// Package atomicfile replaces files atomically: a reader sees the old content or the new one, never a part, and a
// writer that is killed leaves the old one.
//
// It doesn't protect against hostile paths: only trusted users may be able to write to the directory.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Options of [Write]. The zero value renames a temporary file with a random name over the target without flushing.
type Options struct {
	// Sync flushes the file before it is renamed, and the directory afterwards, so that the new content survives
	// a power failure. It is unnecessary where [Volatile] is true.
	Sync bool
	// FixedTemp names the temporary file path + ".tmp", so that the next writer overwrites the temporary file of
	// a writer that was killed. The caller must hold a lock on path.
	FixedTemp bool
	// Owner is the owner of the new file; nil means this process's user.
	Owner *Owner
}

// Owner is a user and a group by number.
type Owner struct{ UID, GID int }

// Write replaces the file at path by one with this content and exactly these
// permissions, whatever the umask. A symbolic link at path is replaced, not
// followed. On error the old file is untouched and no temporary file is left.
func Write(path string, data []byte, perm fs.FileMode, o Options) error {
	fd, name, err := createTemp(path, o.FixedTemp)
	if err != nil {
		return err
	}
	err = fillFile(fd, name, data, perm, o)
	if err == nil {
		err = renameFile(name, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(name))
	}
	if o.Sync {
		return syncDir(filepath.Dir(path))
	}
	return nil
}

// Volatile reports whether the directory is on a file system that a reboot empties (tmpfs, ramfs). It is false on
// errors.
func Volatile(dir string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false
	}
	return st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC
}

// createTemp returns a descriptor instead of an os.File, which would first be registered with the poller.
func createTemp(path string, fixed bool) (fd int, name string, err error) {
	flags, name := unix.O_TRUNC, path+".tmp"
	if !fixed {
		flags = unix.O_EXCL
		name = filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.tmp-%x", filepath.Base(path), rand.Uint64()))
	}
	err = retryInterrupted(func() error {
		fd, err = unix.Open(name, flags|unix.O_CREAT|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return -1, "", &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return fd, name, nil
}

func fillFile(fd int, name string, data []byte, perm fs.FileMode, o Options) error {
	op, err := "write", writeAll(fd, data)
	if err == nil && o.Owner != nil {
		op, err = "chown", unix.Fchown(fd, o.Owner.UID, o.Owner.GID)
	}
	if err == nil {
		op, err = "chmod", unix.Fchmod(fd, uint32(perm.Perm()))
	}
	if err == nil && o.Sync {
		op, err = "sync", retryInterrupted(func() error { return unix.Fsync(fd) })
	}
	if cerr := unix.Close(fd); err == nil {
		op, err = "close", cerr
	}
	if err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		data = data[max(n, 0):]
	}
	return nil
}

// retryInterrupted repeats a call that a signal has interrupted.
func retryInterrupted(call func() error) error {
	err := call()
	for errors.Is(err, unix.EINTR) {
		err = call()
	}
	return err
}

// renameFile is os.Rename without its stat of the target: the kernel itself refuses to replace a directory.
func renameFile(from, to string) error {
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
