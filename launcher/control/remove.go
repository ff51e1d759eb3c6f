package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/isolation/network"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Remove removes a task that has ended. With force, it first kills a task that runs. A missing task is
// not an error. The error Is ErrRuns for a running task without force, and ErrRank for a rank.
func Remove(ctx context.Context, store tasks.Store, t tasks.Task, force bool) error {
	if t.Member != nil {
		if g, err := store.Record(t.Member.Gang); err == nil {
			return fmt.Errorf("task %s: %w; berth rm %s removes the gang", t.Name, ErrRank, g.Name)
		}
	}
	if force && t.Orphan() {
		// The task can be killed without a new monitor, for which the disk may have no space.
		if done, err := removeOrphan(ctx, store, t); done {
			return err
		}
	}
	if t.Orphan() { // a new monitor records its end, or restarts it
		var err error
		if t, err = currentTask(ctx, store, t.ID); errors.Is(err, ErrNotRunning) {
			return nil
		} else if err != nil {
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
	if t.Exit == nil { // its launcher or monitor was killed, and a runtime may still run
		return errors.Join(killAndRemove(ctx, store, t.Record), held.Close())
	}
	return errors.Join(runSteps(
		func() error { return removeRanks(ctx, store, t.Record) },
		func() error { return removeContainer(ctx, t.Record) },
		func() error { return removeRecord(store, t.ID) },
	), held.Close())
}

// removeRecord removes a task that has ended and holds neither lease nor processes.
func removeRecord(store tasks.Store, id string) error {
	if err := store.Remove(id); err != nil {
		return fmt.Errorf("the task has ended and holds nothing, but its record stays: %w", err)
	}
	return nil
}

// removeOrphan kills and removes a task without a monitor. done is false if the task has a monitor by
// now.
func removeOrphan(ctx context.Context, store tasks.Store, t tasks.Task) (done bool, err error) {
	held, err := lock.TryOpen(store.Dir(t.ID), lock.Exclusive)
	if err != nil {
		return false, nil //nolint:nilerr // the caller stops the task instead
	}
	if now, err := store.Task(t.ID); err != nil || !now.Orphan() {
		return false, held.Close()
	}
	return true, errors.Join(killAndRemove(ctx, store, t.Record), held.Close())
}

// removeAbandoned kills and removes an abandoned task (Task.Abandoned): the runtime may still be
// creating the container, or the container waits for its start.
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
		err = nil // another process has removed the task
	}
	return errors.Join(err, held.Close())
}

// killAndRemove kills a task that has neither launcher nor monitor, releases its lease and removes
// it. The caller holds the task's lock.
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
	cgroups, err := cgroup.Detect(r.CgroupMount)
	if err != nil {
		return err
	}
	if err := cgroups.Kill(ctx, r.Cgroup); err != nil {
		return fmt.Errorf("end task %s: %w", r.ID, err)
	}
	return nil
}

// removeContainer removes a task's container from the runtime, and the task's cgroup.
func removeContainer(ctx context.Context, r tasks.Record) error {
	cgroups, err := cgroup.Detect(r.CgroupMount)
	if err != nil {
		return err
	}
	err = ociruntime.Runtime{Path: r.Runtime, Root: r.RuntimeRoot}.Delete(ctx, r.ID)
	return errors.Join(err, cgroups.RemoveAll(r.Cgroup))
}

// RemoveContainer is removeContainer for a task without a record. Runtime and cgroup follow from the
// links in the task's directory.
func RemoveContainer(ctx context.Context, p tasks.Paths, cgroups cgroup.Hierarchy) error {
	return errors.Join(deleteFromRuntime(ctx, p, cgroups), cgroups.RemoveAll(p.Cgroup()))
}

func deleteFromRuntime(ctx context.Context, p tasks.Paths, cgroups cgroup.Hierarchy) error {
	program, err := os.Readlink(p.RuntimeLink())
	if err != nil {
		return nil // the runtime was never called
	}
	r := ociruntime.Runtime{Path: program, Root: p.RuntimeRoot(program)}
	if some, err := cgroups.Populated(p.Cgroup()); err == nil && !some {
		if done, err := r.DeleteWithoutRuntime(p.ID, filepath.Join(p.Bundle(), "config.json")); done || err != nil {
			return err
		}
	}
	return r.Delete(ctx, p.ID)
}

// removeRanks removes the ranks of a gang whose processes have ended, and the gang's network. It is
// called before the gang's record is removed, which names the ranks.
func removeRanks(ctx context.Context, store tasks.Store, g tasks.Record) error {
	if g.Gang == nil {
		return nil
	}
	var err error
	for _, id := range g.Gang.Ranks {
		r, e := store.Record(id)
		if errors.Is(e, fs.ErrNotExist) {
			// Without a record the rank has nothing but its directory.
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

// releaseLease releases the lease of a task whose launcher was killed and whose container was
// removed. It reads the record again, because the task may have got the lease meanwhile. A lease whose
// holder lives stays.
func releaseLease(ctx context.Context, store tasks.Store, id string) error {
	r, err := store.Record(id)
	if err != nil || r.Lease == "" || r.Shared {
		return nil // no lease of its own, or no record
	}
	err = store.Ledger(r).ReleaseIfDead(ctx, r.Lease)
	if errors.Is(err, ledger.ErrNotFound) || errors.Is(err, ledger.ErrLive) {
		return nil
	}
	return err
}

// RemoveBroken kills and removes a task whose record can't be read. Cgroup and runtime follow from the
// links in the task's directory. broken is the error of Store.Find or Store.Task.
func RemoveBroken(ctx context.Context, store tasks.Store, broken *tasks.BrokenError) error {
	if !broken.IsDamaged() {
		return fmt.Errorf("%w; the files aren't damaged, so the task isn't removed", broken)
	}
	cgroups, err := cgroup.Detect("")
	if err != nil {
		return err
	}
	p := store.Paths(broken.ID)
	// If the monitor lives, it releases everything once the processes have ended.
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
	), held.Close())
}
