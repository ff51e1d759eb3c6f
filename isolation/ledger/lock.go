package ledger

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
)

// fileLock is the open lock file, with the queue of processes that wait for it.
type fileLock struct {
	path   string
	fd     int
	queue  lockQueue
	fair   bool // the queue exists and can be used
	queued bool // this process is at the head of the queue
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

func (l *fileLock) callLocked(ctx context.Context, limit time.Duration, f func() error) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	resume, err := l.acquire(limited)
	defer func() {
		l.close()
		resume()
	}()
	var held *lock.HeldError
	if errors.As(err, &held) {
		held.Path, held.Err = l.path, ctx.Err()
		return &LockError{held}
	}
	if err != nil {
		return &fs.PathError{Op: "lock", Path: l.path, Err: err}
	}
	if !lock.IsAt(l.fd, l.path) {
		return errMoved
	}
	return f()
}

// The process waits for the queue in intervals of queueInterval; 64 concurrent processes wait less than
// 100 ms in total. The end of ctx is noticed, and stop signals are delivered, after at most one
// interval.
const (
	queueLooks    = 2
	queueInterval = 100 * time.Millisecond
)

// acquire takes the lock when this process is at the head of the queue, or when the lock is free although
// the queue does not advance. It waits on the caller's thread: with many waiting processes, a goroutine
// and a timer in each cost more than the update that they wait for. Signals that stop the process are
// delayed until resume is called. resume is never nil.
func (l *fileLock) acquire(ctx context.Context) (resume func(), err error) {
	end, _ := ctx.Deadline()
	for i := 0; l.fair && !l.queued && i <= queueLooks && ctx.Err() == nil; i++ {
		limit := time.Duration(0)
		if i > 0 {
			limit = min(queueInterval, time.Until(end))
		}
		// A process that is stopped at the head of the queue would block it.
		resume := lock.DelayStop()
		err := l.queue.enter(limit)
		l.queued = err == nil
		l.fair = l.queued || errors.Is(err, unix.EAGAIN) // else it is gone
		if l.queued || i > 0 {
			if err := lock.TryAcquire(l.fd, lock.Exclusive); !errors.Is(err, lock.ErrBusy) {
				return resume, err
			}
		}
		resume()
	}
	return lock.Hold(ctx, l.fd, lock.Exclusive)
}

// close unlocks, and undoes what acquire did. Closing the file would not be enough: a child that another
// goroutine is forking has a copy until it executes its program.
func (l *fileLock) close() {
	_ = lock.Release(l.fd) // the only error is a bad descriptor
	_ = unix.Close(l.fd)   // nothing was written
	if l.queued {
		l.queue.leave()
	}
}
