package network

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

func lockFile(state string) string { return filepath.Join(state, "network.lock") }

// locked calls f while it holds the lock of this host's networks. The kernel unlocks for
// a process that dies; the file is never removed.
func locked(ctx context.Context, state string, f func() error) (err error) {
	path := lockFile(state)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	const shortest, longest = time.Millisecond, 20 * time.Millisecond
	for wait := shortest; ; wait = min(2*wait, longest) {
		switch err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return f()
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lock %s: %w", path, ctx.Err())
		case <-time.After(wait):
		}
	}
}
