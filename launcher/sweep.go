package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// sweep removes what launchers that were killed left: task directories that no
// launcher holds and whose cgroup is empty. A container that outlived its
// launcher is left alone. Each launch begins with it.
func sweep(ctx context.Context, o Options, h *host) error {
	all := filepath.Join(o.Data, "tasks")
	gate, err := lockTask(all, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EWOULDBLOCK) {
		// No tasks yet, or somebody is making one or sweeping: the next launch will.
		return nil
	}
	if err != nil {
		return err
	}
	leftovers, err := findLeftovers(o, h, all)
	err = errors.Join(err, gate.Close())
	for _, l := range leftovers {
		err = errors.Join(err, l.remove(ctx, h))
	}
	return err
}

// leftover is a dead task, held by us now.
type leftover struct {
	place place
	lock  *os.File
}

// findLeftovers runs with the gate closed: no task directory is without its lock.
func findLeftovers(o Options, h *host, all string) ([]leftover, error) {
	entries, err := os.ReadDir(all)
	if err != nil {
		return nil, fmt.Errorf("look for leftovers: %w", err)
	}
	var found []leftover
	for _, e := range entries {
		p := placeOf(o, e.Name())
		lock, busy := lockTask(p.dir, unix.LOCK_EX|unix.LOCK_NB)
		if busy != nil {
			continue // its launcher lives
		}
		if populated, unsure := h.tree.Populated(p.cgroup()); populated || unsure != nil {
			err = errors.Join(err, unsure, lock.Close())
			continue
		}
		found = append(found, leftover{place: p, lock: lock})
	}
	return found, err
}

func (l leftover) remove(ctx context.Context, h *host) error {
	err := l.place.removeContainer(ctx, h)
	return errors.Join(err, os.RemoveAll(l.place.dir), l.lock.Close())
}
