package ledger

import (
	"context"
	"errors"
	"io/fs"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
)

// fileLock is the open lock file, with the queue of processes that wait for it.
type fileLock struct {
	path  string
	fd    int
	queue lockQueue
	fair  bool // there is a queue
}

var errMoved = errors.New("the lock's file was replaced")

// withLock calls f while it holds the ledger's lock. It gives up when ctx ends or
// after limit, but not once f runs. The kernel unlocks for a process that dies.
func (s store) withLock(ctx context.Context, limit time.Duration, f func() error) error {
	for {
		l, err := openLock(s.lockPath())
		if err != nil {
			return err
		}
		if err := l.callLocked(ctx, limit, f); !errors.Is(err, errMoved) {
			return err
		}
	}
}

func openLock(path string) (fileLock, error) {
	fd, st, err := openFile(path, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return fileLock{}, err
	}
	l := fileLock{path: path, fd: fd}
	l.queue, l.fair = openLockQueue(st)
	return l, nil
}

func (l fileLock) callLocked(ctx context.Context, limit time.Duration, f func() error) error {
	defer raisePriority()()
	defer lock.DelayStop()()
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	queued, locked, err := l.tryLock()
	if !locked && !queued && err == nil {
		queued, locked, err = l.waitInQueue(limited)
	}
	defer func() { l.close(queued) }()
	if !locked && err == nil {
		err = l.checkLocked(lock.Acquire(limited, l.fd, lock.Exclusive))
	}
	var held *lock.HeldError
	if errors.As(err, &held) {
		held.Path, held.Err = l.path, ctx.Err()
		return &LockError{held}
	}
	if err == nil {
		err = f()
	}
	return err
}

// tryLock takes the lock if that needs no wait.
func (l fileLock) tryLock() (queued, locked bool, err error) {
	if l.fair {
		err := l.queue.enter(0)
		if errors.Is(err, unix.EAGAIN) {
			return false, false, nil
		}
		queued = err == nil
	}
	locked, err = l.takeIfFree()
	return queued, locked, err
}

// takeIfFree takes the lock if it is free.
func (l fileLock) takeIfFree() (locked bool, err error) {
	err = l.checkLocked(lock.TryAcquire(l.fd, lock.Exclusive))
	if errors.Is(err, lock.ErrBusy) {
		return false, nil
	}
	return err == nil, err
}

// The queue is waited for this often and this long: 64 processes in a rush wait
// for less than a tenth of a second. It is also how late an end of ctx is seen.
const (
	queueLooks = 2
	queueLook  = 100 * time.Millisecond
)

// waitInQueue takes the lock in its turn. It also takes a lock that is free although the
// queue does not advance. It waits on the caller's thread: with many waiting processes, a
// goroutine and a timer in each cost more than the change that they wait for.
func (l fileLock) waitInQueue(ctx context.Context) (queued, locked bool, err error) {
	end, _ := ctx.Deadline()
	for i := 0; l.fair && i < queueLooks && ctx.Err() == nil; i++ {
		err := l.queue.enter(min(queueLook, time.Until(end)))
		if err == nil {
			locked, err = l.takeIfFree()
			return true, locked, err
		}
		if !errors.Is(err, unix.EAGAIN) {
			return false, false, nil // it is gone
		}
		if locked, err := l.takeIfFree(); locked || err != nil {
			return false, locked, err
		}
	}
	return false, false, nil
}

// raisePriority gives this thread the highest priority while it waits for and holds the lock;
// otherwise it would share the CPUs with all processes that are about to ask for the lock. It
// returns the function that restores the priority. Without the privilege it does nothing.
//
// The goroutine stays on the thread meanwhile. This also keeps Go's runtime from cloning new
// threads from it: they, and processes that they start, would inherit the priority.
func raisePriority() (restore func()) {
	runtime.LockOSThread()
	const thread = 0 // the calling one
	was, err := unix.Getpriority(unix.PRIO_PROCESS, thread)
	if err != nil || unix.Setpriority(unix.PRIO_PROCESS, thread, -20) != nil {
		return runtime.UnlockOSThread
	}
	return func() {
		_ = unix.Setpriority(unix.PRIO_PROCESS, thread, 20-was) // everybody may be nicer
		runtime.UnlockOSThread()
	}
}

// checkLocked makes an error of a lock that was not got, or of a file that is not the
// ledger's lock any more.
func (l fileLock) checkLocked(err error) error {
	if err != nil {
		return &fs.PathError{Op: "lock", Path: l.path, Err: err}
	}
	if !lock.IsAt(l.fd, l.path) {
		return errMoved
	}
	return nil
}

// close unlocks, and releases the queue if queued. Closing the file would not be enough: a
// child that another goroutine is forking has a copy until it executes its program.
func (l fileLock) close(queued bool) {
	_ = lock.Release(l.fd) // the only error is a bad descriptor
	_ = unix.Close(l.fd)   // nothing was written
	if queued {
		l.queue.leave()
	}
}
