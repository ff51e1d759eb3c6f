package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lock takes the ledger's lock, and gives up when ctx ends or after limit. The
// returned function unlocks; calling it again does nothing. The kernel unlocks
// for a process that dies.
func (s store) lock(ctx context.Context, limit time.Duration, proc string) (unlock func(), err error) {
	path := s.lockFile()
	started := time.Now()
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		fd, err := openFile(path, unix.O_RDWR|unix.O_CREAT, 0o600)
		if err != nil {
			return nil, err
		}
		if err := flock(limited, fd, path); err != nil {
			if limited.Err() != nil {
				return nil, &LockError{path, holder(path, proc), time.Since(started), ctx.Err()}
			}
			return nil, err
		}
		if isAt(fd, path) {
			return sync.OnceFunc(func() { unlockFile(fd) }), nil
		}
		unlockFile(fd) // somebody removed the file that we waited for
	}
}

func unlockFile(fd int) {
	// Unlock first: a child that another goroutine is just forking holds the
	// descriptor too, until it executes its program.
	_ = unix.Flock(fd, unix.LOCK_UN) // the only error is a bad descriptor
	_ = unix.Close(fd)               // nothing was written
}

// flock locks fd, or closes it and returns an error. A wait that ctx cuts short
// goes on behind the scenes until the kernel grants the lock, which is then given
// back: there is no other way to leave the kernel's queue but to die.
func flock(ctx context.Context, fd int, path string) error {
	err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return errors.Join(&fs.PathError{Op: "lock", Path: path, Err: err}, unix.Close(fd))
	}
	granted := make(chan error, 1)
	go func() {
		err := unix.Flock(fd, unix.LOCK_EX)
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(fd, unix.LOCK_EX)
		}
		granted <- err
	}()
	select {
	case err := <-granted:
		if err != nil {
			return errors.Join(&fs.PathError{Op: "lock", Path: path, Err: err}, unix.Close(fd))
		}
		return nil
	case <-ctx.Done():
		go func() {
			<-granted
			unlockFile(fd)
		}()
		return ctx.Err()
	}
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
