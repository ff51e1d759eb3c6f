package network

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/lock"
)

func lockPath(state string) string { return filepath.Join(state, "network.lock") }

// withLock calls f while it holds the lock of this host's networks. The kernel unlocks for
// a process that dies; the file is never removed.
func withLock(ctx context.Context, state string, f func() error) (err error) {
	held, err := lock.Create(ctx, lockPath(state), 0o600, lock.Exclusive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	return f()
}
