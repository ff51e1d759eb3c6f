package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The lock is two files. Who changes the ledger holds ledger.lock; who waits for
// that holds ledger.gate, one at a time, and the others wait for the gate. With one
// file alone, whoever has just unlocked would take it again before the one that was
// woken runs, which is unfair, and makes the kernel wake all who wait, each time.

// fileLock is the open files of a lock, of which either or none may be locked.
type fileLock struct {
	path       string
	gate, lock int
}

var errMoved = errors.New("the lock's file was replaced")

// locked calls f while it holds the ledger's lock. It gives up when ctx ends or
// after limit, but not once f runs. The kernel unlocks for a process that dies.
func (s store) locked(ctx context.Context, limit time.Duration, proc string, f func() error) error {
	for {
		l, err := s.openLock()
		if err != nil {
			return err
		}
		if err := l.call(ctx, limit, proc, f); !errors.Is(err, errMoved) {
			return err
		}
	}
}

func (s store) openLock() (fileLock, error) {
	const flags = unix.O_RDWR | unix.O_CREAT
	gate, err := openFile(s.gateFile(), flags, 0o600)
	if err != nil {
		return fileLock{}, err
	}
	lock, err := openFile(s.lockFile(), flags, 0o600)
	if err != nil {
		return fileLock{}, errors.Join(err, unix.Close(gate))
	}
	return fileLock{s.lockFile(), gate, lock}, nil
}

func (l fileLock) call(ctx context.Context, limit time.Duration, proc string, f func() error) error {
	if ok, err := l.take(unix.LOCK_NB); ok || err != nil {
		defer l.close()
		if err == nil {
			err = f()
		}
		return err
	}
	started := time.Now()
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// The wait can't be interrupted: to leave the kernel's queue, one has to die. So
	// it happens behind the scenes, and so does f, at once and without a detour.
	// Who claims first decides whether f is called.
	var claimed atomic.Bool
	done := make(chan error, 1)
	go func() {
		defer l.close()
		_, err := l.take(0)
		if !claimed.CompareAndSwap(false, true) {
			return // nobody waits for it any more
		}
		if err == nil {
			err = f()
		}
		l.release() // before the caller goes on
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-limited.Done():
		if claimed.CompareAndSwap(false, true) {
			return &LockError{l.path, holder(l.path, proc), time.Since(started), ctx.Err()}
		}
		return <-done
	}
}

// take goes through the gate and takes the lock. With LOCK_NB it returns false
// where it would have to wait, and may then be called again to wait.
func (l fileLock) take(how int) (bool, error) {
	for _, fd := range []int{l.gate, l.lock} {
		err := unix.Flock(fd, unix.LOCK_EX|how)
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(fd, unix.LOCK_EX|how)
		}
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil
		}
		if err != nil {
			return false, &fs.PathError{Op: "lock", Path: l.path, Err: err}
		}
	}
	if err := unix.Flock(l.gate, unix.LOCK_UN); err != nil {
		return false, &fs.PathError{Op: "unlock", Path: l.path, Err: err}
	}
	if !isAt(l.lock, l.path) {
		return false, errMoved
	}
	return true, nil
}

// release unlocks. To close the files isn't enough: a child that another goroutine
// is just forking holds them too, until it executes its program.
func (l fileLock) release() {
	_ = unix.Flock(l.lock, unix.LOCK_UN) // the only error is a bad descriptor
	_ = unix.Flock(l.gate, unix.LOCK_UN)
}

func (l fileLock) close() {
	l.release()
	_ = unix.Close(l.lock) // nothing was written
	_ = unix.Close(l.gate)
}

// isAt says that the open file is the one that path leads to.
func isAt(fd int, path string) bool {
	var open, named unix.Stat_t
	return unix.Fstat(fd, &open) == nil && unix.Lstat(path, &named) == nil &&
		open.Dev == named.Dev && open.Ino == named.Ino
}

// holder finds in /proc/locks who has locked the file, 0 if nobody is seen.
func holder(path, proc string) int {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0
	}
	locks, err := os.ReadFile(proc + "/locks")
	if err != nil {
		return 0
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	return findLock(string(locks), file)
}

// findLock reads lines like "3: FLOCK  ADVISORY  WRITE 1234 00:1a:5678 0 EOF"; a
// line with "->" is somebody who waits.
func findLock(locks, file string) int {
	for line := range strings.Lines(locks) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != file {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 {
			return pid
		}
	}
	return 0
}
