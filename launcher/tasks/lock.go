package tasks

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Lock takes the lock of a task, which its launcher or monitor holds as long as it lives;
// it ends with the returned file, or with this process. The error Is unix.EWOULDBLOCK if
// somebody has it.
func (s Store) Lock(id string) (*os.File, error) { return lock(s.Dir(id), unix.LOCK_EX|unix.LOCK_NB) }

func lock(dir string, how int) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close() // nothing was written
		return nil, &fs.PathError{Op: "lock", Path: dir, Err: err}
	}
	return f, nil
}
