package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"github.com/berth-gpu/berth/isolation/network"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// ErrRank: what was asked for is done to a whole gang, or not at all.
var ErrRank = errors.New("it is a rank of a gang")

// rankError says which gang a rank is of, and what is possible.
func rankError(store tasks.Store, t tasks.Task, verb string) error {
	name := t.Member.Gang
	if g, err := store.Record(t.Member.Gang); err == nil {
		name = g.Name
	}
	return fmt.Errorf("task %s: %w; berth %s %s is for all of it", t.Name, ErrRank, verb, name)
}

// signalRanks sends a signal to the first process of each rank that runs.
func signalRanks(store tasks.Store, g tasks.Task, sig syscall.Signal) error {
	all, err := store.Ranks(*g.Gang)
	for _, t := range all {
		if t.State != tasks.Running || t.Life == nil {
			continue
		}
		if e := signalTo(store, t.Life.Init, sig); e != nil && !errors.Is(e, ErrNotRunning) {
			err = errors.Join(err, fmt.Errorf("task %s: %w", t.Name, e))
		}
	}
	return err
}

// pushRanks does to each rank what is to be done to end the gang.
func (s stopping) pushRanks(g tasks.Task, grace time.Duration) error {
	all, err := s.store.Ranks(*g.Gang)
	for _, t := range all {
		if e := s.push(t, grace); e != nil && !errors.Is(e, ErrNotRunning) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// removeRanks removes what is kept of a gang's ranks, whose processes have ended: their
// containers, cgroups and directories. They come before the gang, by whose record they are
// found.
func removeRanks(ctx context.Context, store tasks.Store, g tasks.Record) error {
	if g.Gang == nil {
		return nil
	}
	var err error
	for _, id := range g.Gang.Ranks {
		r, e := store.Record(id)
		if errors.Is(e, fs.ErrNotExist) {
			// Its launcher had only begun; nothing but its directory can be there.
			err = errors.Join(err, tasks.RemoveDir(store.Dir(id)))
			continue
		}
		if e == nil {
			e = first(
				func() error { return removeContainer(ctx, r) },
				func() error { return store.Remove(id) },
			)
		}
		err = errors.Join(err, e)
	}
	return errors.Join(err, disconnect(ctx, store, g))
}

// disconnect removes a gang's network, of which the kernel keeps nothing without its
// processes.
func disconnect(ctx context.Context, store tasks.Store, g tasks.Record) error {
	if kind := g.Gang.Network; kind == "none" || kind == "host" {
		return nil
	}
	return errors.Join(network.Disconnect(ctx, g.ID), network.RestoreHost(ctx, or(store.State, "/run/berth"), network.Host{}))
}
