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
	spareRoom = 4096
)

// ReserveSpace makes sure that a task's life and its end can be written, however full the disk
// will be then.
func (s Store) ReserveSpace(id string) error {
	path := s.Path(id, spareFile)
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	err = unix.Fallocate(fd, 0, 0, spareRoom)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = nil // then there is none
	}
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("keep room at %s: %w", path, err)
	}
	return nil
}

// writeReserved puts data into the spare file, and that in the place of another, which becomes
// the spare one.
func (s Store) writeReserved(id, name string, data []byte) error {
	if len(data) > spareRoom {
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

// isDiskFull says that there is no room for a file.
func isDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
