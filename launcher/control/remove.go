package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/isolation/network"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Remove removes what is kept of a task that has ended. With force, a task that runs is killed
// first. A task that is gone already is not an error. The error Is ErrRuns or ErrRank.
func Remove(ctx context.Context, store tasks.Store, t tasks.Task, force bool) error {
	if t.Member != nil {
		if g, err := store.Record(t.Member.Gang); err == nil {
			return fmt.Errorf("task %s: %w; berth rm %s is for all of it", t.Name, ErrRank, g.Name)
		}
	}
	if force && t.Orphan() {
		// It needs no new monitor to be killed, and there may be no room for one.
		if done, err := removeOrphan(ctx, store, t); done {
			return err
		}
	}
	if !hasEnded(t) {
		if !force {
			return fmt.Errorf("task %s: %w (%s)", t.Name, ErrRuns, t.Status)
		}
		if err := Stop(ctx, store, t, 0); err != nil {
			return err
		}
	}
	held, err := lockTask(ctx, store.Dir(t.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("task %s: %w", t.Name, err)
	}
	if t.Exit == nil { // its launcher or monitor was killed, and may have left a runtime at work
		return errors.Join(killAndRemove(ctx, store, t.Record), held.Close())
	}
	return errors.Join(runSteps(
		func() error { return removeRanks(ctx, store, t.Record) },
		func() error { return removeContainer(ctx, t.Record) },
		func() error { return removeRecord(store, t.ID) },
	), held.Close())
}

// removeRecord removes a task that has ended and holds nothing. Its end needs no disk, and the
// removal of its record does.
func removeRecord(store tasks.Store, id string) error {
	if err := store.Remove(id); err != nil {
		return fmt.Errorf("the task has ended and holds nothing, but its record stays: %w", err)
	}
	return nil
}

// removeOrphan kills and removes a task that has no monitor. done is false if it has one by
// now.
func removeOrphan(ctx context.Context, store tasks.Store, t tasks.Task) (done bool, err error) {
	held, err := lock.TryOpen(store.Dir(t.ID), lock.Exclusive)
	if err != nil {
		return false, nil //nolint:nilerr // the caller stops it, and learns why that fails
	}
	if now, err := store.Task(t.ID); err != nil || !now.Orphan() {
		return false, held.Close()
	}
	return true, errors.Join(killAndRemove(ctx, store, t.Record), held.Close())
}

// removeAbandoned kills and removes a task that was cut off before it had started: the runtime
// may still be making its container, or the container waits for its start.
func removeAbandoned(ctx context.Context, store tasks.Store, id string) error {
	held, err := lockTask(ctx, store.Dir(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("task %s: %w", id, err)
	}
	t, err := store.Task(id)
	if err == nil && t.Abandoned() {
		err = runSteps(
			func() error { return killAndRelease(ctx, store, t.Record) },
			func() error { return removeOrRecordUnstarted(store, t.Record) },
		)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // another process was quicker
	}
	return errors.Join(err, held.Close())
}

// killAndRemove removes all of a task that has neither launcher nor monitor, and releases its
// lease. The caller holds the task's lock.
func killAndRemove(ctx context.Context, store tasks.Store, r tasks.Record) error {
	return runSteps(
		func() error { return killAndRelease(ctx, store, r) },
		func() error { return removeRecord(store, r.ID) },
	)
}

// killAndRelease is killAndRemove without the removal of the record.
func killAndRelease(ctx context.Context, store tasks.Store, r tasks.Record) error {
	return runSteps(
		func() error { return killProcesses(ctx, r) },
		func() error { return removeRanks(ctx, store, r) },
		func() error { return removeContainer(ctx, r) },
		func() error { return releaseLease(ctx, store, r.ID) },
	)
}

// killProcesses kills every process of a task.
func killProcesses(ctx context.Context, r tasks.Record) error {
	tree, err := cgroup.Detect(r.CgroupMount)
	if err != nil {
		return err
	}
	if err := tree.Kill(ctx, r.Cgroup); err != nil {
		return fmt.Errorf("end task %s: %w", r.ID, err)
	}
	return nil
}

// removeContainer removes what the runtime may still know of a container, and the task's
// cgroup.
func removeContainer(ctx context.Context, r tasks.Record) error {
	tree, err := cgroup.Detect(r.CgroupMount)
	if err != nil {
		return err
	}
	err = ociruntime.Runtime{Path: r.Runtime, Root: r.RuntimeRoot}.Delete(ctx, r.ID)
	return errors.Join(err, tree.RemoveAll(r.Cgroup))
}

// RemoveContainer removes what a runtime may still know of a container, and the task's cgroup,
// by what the task's directory says of them.
func RemoveContainer(ctx context.Context, p tasks.Paths, cgroups cgroup.Hierarchy) error {
	var err error
	if program, e := os.Readlink(p.RuntimeLink()); e == nil {
		err = ociruntime.Runtime{Path: program, Root: p.RuntimeRoot(program)}.Delete(ctx, p.ID)
	}
	return errors.Join(err, cgroups.RemoveAll(p.Cgroup()))
}

// removeRanks removes what is kept of a gang's ranks, whose processes have ended, and the
// gang's network. The ranks go before the gang, whose record names them.
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
			e = runSteps(
				func() error { return removeContainer(ctx, r) },
				func() error { return store.Remove(id) },
			)
		}
		err = errors.Join(err, e)
	}
	if kind := g.Gang.Network; kind == "none" || kind == "host" {
		return err
	}
	return errors.Join(err, network.Disconnect(ctx, g.ID), network.RestoreHost(ctx, cmp.Or(store.State, "/run/berth"), network.Host{}))
}

// releaseLease releases the lease of a task whose launcher was killed and whose container is
// gone. The record is read anew: the task may have got the lease since it was read. A lease
// whose holder lives is left to that holder.
func releaseLease(ctx context.Context, store tasks.Store, id string) error {
	r, err := store.Record(id)
	if err != nil || r.Lease == "" || r.Shared {
		return nil // it has none of its own, or was removed
	}
	l := ledger.Open(ledger.Options{Dir: store.State, Events: store.Data, Proc: store.Proc, Cgroup: r.CgroupMount})
	err = l.ReleaseIfDead(ctx, r.Lease)
	if errors.Is(err, ledger.ErrNotFound) || errors.Is(err, ledger.ErrLive) {
		return nil
	}
	return err
}

// RemoveBroken kills and removes a task whose record can't be read. Where its processes are,
// and which runtime has made its container, follows from its directory. broken is the error
// of Find or Task.
func RemoveBroken(ctx context.Context, store tasks.Store, broken *tasks.BrokenError) error {
	if !broken.IsDamaged() {
		return fmt.Errorf("%w; that is no reason to remove it", broken)
	}
	cgroups, err := cgroup.Detect("")
	if err != nil {
		return err
	}
	p := store.Paths(broken.ID)
	// A monitor that lives gives everything back when its task has ended.
	if err := killProcesses(ctx, tasks.Record{ID: broken.ID, Cgroup: p.Cgroup()}); err != nil {
		return err
	}
	held, err := lockTask(ctx, p.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("task %s: %w", broken.ID, err)
	}
	return errors.Join(runSteps(
		func() error { return RemoveContainer(ctx, p, cgroups) },
		func() error { return store.Remove(broken.ID) },
		store.Prune, // it may have a name that no record tells
	), held.Close())
}
