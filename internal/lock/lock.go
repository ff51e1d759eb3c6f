// Package lock takes advisory locks on whole files and directories (flock(2)).
//
// A lock belongs to the open file description, not to the process: it is shared by all
// duplicates of the descriptor and by every process that inherits one, it survives exec
// in a process that keeps the descriptor, and the kernel drops it when the last
// duplicate is closed, however the processes end. All files that this package opens have
// O_CLOEXEC, so a lock passes to another program only where the descriptor is handed on
// deliberately. A child that is being forked has a copy of each descriptor until it
// executes its program; where the next process must get the lock the moment it is given
// up, call [Release] before closing.
//
// A lock says nothing about the path: the file may have been removed or replaced between
// opening and locking it, and the next process then locks another file. Where files are
// removed, the caller checks with [IsAt] once it has the lock, and starts again if the
// path leads elsewhere. Files that are never removed need no check.
//
// Anybody who can open a file can hold its lock for ever. Locks are therefore only taken
// on files that other users cannot open, or with a context that ends.
package lock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Mode says who else may hold the lock at the same time.
type Mode int

// Modes of a lock: see flock(2).
const (
	Shared    Mode = unix.LOCK_SH // other holders of the shared lock
	Exclusive Mode = unix.LOCK_EX // nobody
)

// ErrBusy is what the functions that do not wait return, wrapped or as it is, when the lock is
// held by another open file description.
const ErrBusy = unix.EWOULDBLOCK

// While a wait can be cancelled, the lock is asked for at these intervals.
const (
	shortestPause = time.Millisecond
	longestPause  = 20 * time.Millisecond
)

// Acquire locks an open file and waits until it has the lock or ctx ends; the error is then
// ctx's. A file that is locked already changes its mode, but not atomically: the old lock is
// given up first.
//
// With a context that never ends the caller waits in the kernel's queue. There is no way to
// leave that queue, so with any other context Acquire polls, and processes that wait in the
// queue come first.
func Acquire(ctx context.Context, fd int, m Mode) error {
	if ctx.Done() == nil {
		return flock(fd, int(m))
	}
	for pause := shortestPause; ; pause = min(2*pause, longestPause) {
		if err := TryAcquire(fd, m); !errors.Is(err, ErrBusy) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// TryAcquire is Acquire without waiting: it returns ErrBusy if another holds the lock.
func TryAcquire(fd int, m Mode) error { return flock(fd, int(m)|unix.LOCK_NB) }

// Release gives the lock up for all duplicates of the descriptor. The only error is a bad
// descriptor.
func Release(fd int) error { return flock(fd, unix.LOCK_UN) }

func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Create opens a lock file, which it creates if it is missing, and locks it as [Acquire] does.
// It refuses a symbolic link. perm should let nobody else open the file. Closing the
// file, or the end of the process, gives the lock up.
func Create(ctx context.Context, path string, perm fs.FileMode, m Mode) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, perm)
	if err != nil {
		return nil, err
	}
	return closeUnlessLocked(f, Acquire(ctx, int(f.Fd()), m))
}

// Open opens a file or directory that exists and locks it as [Acquire] does. It refuses a
// symbolic link. Closing the file, or the end of the process, gives the lock up.
func Open(ctx context.Context, path string, m Mode) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return closeUnlessLocked(f, Acquire(ctx, int(f.Fd()), m))
}

// TryOpen is Open without waiting: its error Is [ErrBusy] if another holds the lock.
func TryOpen(path string, m Mode) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return closeUnlessLocked(f, TryAcquire(int(f.Fd()), m))
}

func closeUnlessLocked(f *os.File, err error) (*os.File, error) {
	if err != nil {
		f.Close() // nothing was written
		return nil, &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
	return f, nil
}

// IsAt says whether path leads to the open file, and not to another one, a symbolic link or
// nothing.
func IsAt(fd int, path string) bool {
	var open, named unix.Stat_t
	return unix.Fstat(fd, &open) == nil && unix.Lstat(path, &named) == nil &&
		open.Dev == named.Dev && open.Ino == named.Ino
}
