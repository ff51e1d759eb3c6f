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
// A lock doesn't protect the path: the file may be removed or replaced between opening and locking it, and the next
// process then locks another file. Where files are removed, the caller checks with [IsAt] once it has the lock, and
// starts again if the path leads elsewhere. Files that are never removed need no check.
//
// Every process that can open a file can hold its lock for ever. Locks are therefore only taken on files that other
// users can't open. Waiting is limited, because a holder can be stopped or frozen at any moment, and the error names the
// holder. Signals of the terminal that stop a process are delayed while it holds a [Lock].
package lock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Mode says who else may hold the lock at the same time.
type Mode int

// Modes of a lock: see flock(2).
const (
	Shared    Mode = unix.LOCK_SH // other holders of the shared lock
	Exclusive Mode = unix.LOCK_EX // no other holder
)

// ErrBusy means that another open file description holds the lock. Functions that don't wait return it, wrapped or
// unchanged.
const ErrBusy = unix.EWOULDBLOCK

// While a process waits, it tries the lock at intervals that double from minPause up to briefPause, and then grow to a
// fiftieth of the time waited, at most maxPause. The end of a context is noticed at the next try.
const (
	minPause   = 20 * time.Microsecond
	briefPause = time.Millisecond
	maxPause   = 20 * time.Millisecond
)

// Locks are normally held for milliseconds. Acquire gives up after maxWait if a holder is stopped or frozen, or has held
// the lock for half of maxWait. It waits for up to maxQueueWait while the holders change. A context with a deadline extends
// both limits, except for holders that are stopped or frozen.
const (
	maxWait      = 10 * time.Second
	maxQueueWait = time.Minute
)

// Acquire locks an open file. It waits until it has the lock, ctx ends, or a limit is reached (maxWait, maxQueueWait); the
// error is then a *HeldError. If the file is locked already, the mode changes, but not atomically: the old lock is released
// first.
func Acquire(ctx context.Context, fd int, m Mode) error {
	return acquire(ctx, fd, func() error { return TryAcquire(fd, m) })
}

// Hold is Acquire, and delays signals that stop the process (DelayStop) from the moment that the lock is taken until resume
// is called. While Hold waits, they are not delayed. resume is never nil. Hold is for locks that are held for milliseconds.
func Hold(ctx context.Context, fd int, m Mode) (resume func(), err error) {
	err = acquire(ctx, fd, func() error {
		resume = DelayStop()
		err := TryAcquire(fd, m)
		if err != nil {
			resume()
		}
		return err
	})
	return resume, err
}

func acquire(ctx context.Context, fd int, try func() error) error {
	began := time.Now()
	next := began.Add(maxWait / 2) // when the holders are checked next
	var before []Holder
	_, hasDeadline := ctx.Deadline()
	for pause := minPause; ; pause = min(2*pause, max(briefPause, time.Since(began)/50), maxPause) {
		if err := try(); !errors.Is(err, ErrBusy) {
			return err
		}
		if ctx.Err() != nil {
			return newHeldError(fd, began, ctx.Err())
		}
		// nanosleep on the thread takes a third of the CPU time of a timer of Go's scheduler.
		ts := unix.NsecToTimespec(int64(pause))
		_ = unix.Nanosleep(&ts, nil) // a signal may cut it short
		if time.Now().Before(next) {
			continue
		}
		held := newHeldError(fd, began, nil)
		if held.Waited >= maxWait && held.isStuck(before, hasDeadline) {
			return held
		}
		before, next = held.Holders, time.Now().Add(maxWait/2)
	}
}

// isStuck reports whether the wait is hopeless: a holder is stopped or frozen, or already held the lock at the previous
// check (before), or the wait has taken maxQueueWait.
func (e *HeldError) isStuck(before []Holder, hasDeadline bool) bool {
	if slices.ContainsFunc(e.Holders, func(h Holder) bool { return h.State != Running }) {
		return true
	}
	stays := slices.ContainsFunc(e.Holders, func(h Holder) bool { return containsHolder(before, h) })
	return !hasDeadline && (stays || e.Waited >= maxQueueWait)
}

// newHeldError returns a HeldError with the holders of an open file's lock.
func newHeldError(fd int, began time.Time, why error) *HeldError {
	name := "/proc/self/fd/" + strconv.Itoa(fd)
	path, err := os.Readlink(name)
	if err != nil {
		path = name
	}
	return &HeldError{Path: path, Holders: FindHolders(fd)[0], Waited: time.Since(began), Err: why}
}

// TryAcquire is Acquire without waiting: it returns ErrBusy if another holds the lock.
func TryAcquire(fd int, m Mode) error { return flock(fd, int(m)|unix.LOCK_NB) }

// Release releases the lock of all duplicates of the descriptor. The only possible error is EBADF.
func Release(fd int) error { return flock(fd, unix.LOCK_UN) }

func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Lock is a lock that is held for milliseconds. Signals that stop the process are delayed meanwhile.
type Lock struct {
	file   *os.File
	resume func()
}

// File returns the locked file, which Close closes.
func (l *Lock) File() *os.File { return l.file }

// Close releases the lock. So does the end of the process.
func (l *Lock) Close() error {
	err := l.file.Close()
	l.resume()
	return err
}

// Create opens a lock file, which it creates if it is missing, and locks it as [Acquire] does.
// A symbolic link is an error. perm should not let other users open the file.
func Create(ctx context.Context, path string, perm fs.FileMode, m Mode) (*Lock, error) {
	return openAndLock(ctx, path, os.O_RDWR|os.O_CREATE, perm, m)
}

// Open opens a file or directory that exists and locks it as [Acquire] does. It refuses a
// symbolic link.
func Open(ctx context.Context, path string, m Mode) (*Lock, error) {
	return openAndLock(ctx, path, os.O_RDONLY, 0, m)
}

// openFile opens a regular file or a directory. Anything else is an error, and never waited for, such as a
// FIFO without a writer. So is a symbolic link.
func openFile(path string, flags int, perm fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, perm)
	if errors.Is(err, unix.ENXIO) { // a socket, or a device without a driver
		return nil, pathError(path, errIrregular)
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() && !st.IsDir() {
		err = pathError(path, errIrregular)
	}
	if err != nil {
		f.Close() // nothing was written
		return nil, err
	}
	return f, nil
}

var errIrregular = errors.New("it is neither a regular file nor a directory")

func openAndLock(ctx context.Context, path string, flags int, perm fs.FileMode, m Mode) (*Lock, error) {
	f, err := openFile(path, flags, perm)
	if err != nil {
		return nil, err
	}
	resume, err := Hold(ctx, int(f.Fd()), m)
	if err != nil {
		f.Close() // nothing was written
		return nil, pathError(path, err)
	}
	return &Lock{f, resume}, nil
}

// OpenShared opens a file or directory that exists and takes the shared lock as [Acquire] does. It
// refuses a symbolic link. The lock may be held for minutes: signals that stop the process are not delayed.
func OpenShared(ctx context.Context, path string) (*os.File, error) {
	l, err := Open(ctx, path, Shared)
	if err != nil {
		return nil, err
	}
	l.resume()
	return l.file, nil
}

// TryOpen opens a file or directory that exists and locks it without waiting: its error Is
// [ErrBusy] if another holds the lock. It refuses a symbolic link. Closing the file, or the end of the
// process, gives the lock up; it may be held for as long as a task lives.
func TryOpen(path string, m Mode) (*os.File, error) {
	f, err := openFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	if err := TryAcquire(int(f.Fd()), m); err != nil {
		f.Close() // nothing was written
		return nil, pathError(path, err)
	}
	return f, nil
}

// pathError names the file in an error that doesn't.
func pathError(path string, err error) error {
	var held *HeldError
	if errors.As(err, &held) {
		return err
	}
	return &fs.PathError{Op: "lock", Path: path, Err: err}
}

// IsAt reports whether path leads to the open file, and not to another one, a symbolic link or
// nothing.
func IsAt(fd int, path string) bool {
	var open, named unix.Stat_t
	return unix.Fstat(fd, &open) == nil && unix.Lstat(path, &named) == nil &&
		open.Dev == named.Dev && open.Ino == named.Ino
}
