package tasks

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// The end of a task must be recorded even if the task has filled the disk. Therefore each task has
// a preallocated file that becomes run.json or exit.json if no other file can be written.
const (
	spareFile = "spare"
	spareSize = 4096
)

// ReserveSpace creates the spare file, so that a task's life and end can be written on a full disk. It
// is idempotent.
func (s Store) ReserveSpace(id string) error {
	path := s.Path(id, spareFile)
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	err = unix.Fallocate(fd, 0, 0, spareSize)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = nil // the file system can't reserve space
	}
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("reserve space at %s: %w", path, err)
	}
	return nil
}

// writeReserved writes data to the spare file and exchanges it with the file of that name, which
// becomes the spare file.
func (s Store) writeReserved(id, name string, data []byte) error {
	if len(data) > spareSize {
		return unix.ENOSPC
	}
	spare, path := s.Path(id, spareFile), s.Path(id, name)
	fd, err := unix.Open(spare, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	n, err := unix.Pwrite(fd, data, 0)
	if err == nil && n < len(data) {
		err = unix.ENOSPC
	}
	if err == nil {
		err = unix.Ftruncate(fd, int64(len(data)))
	}
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return err
	}
	err = unix.Renameat2(unix.AT_FDCWD, spare, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		err = unix.Rename(spare, path)
	}
	return err
}

// isDiskFull reports whether an error means that the disk or the quota is full.
func isDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
