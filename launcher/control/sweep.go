package control

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Sweep handles the tasks that have neither launcher nor monitor: it removes what killed launchers
// have left, and starts monitors for tasks that run. Ended tasks that are to be kept stay. monitor is
// as for Adopt.
//
// If more than keep.Count ended tasks are kept, Sweep removes the sweepAtOnce that ended first, so that
// their number is bounded without the timer.
//
// Sweep does nothing while another process sweeps or creates a task's directory.
func Sweep(ctx context.Context, store tasks.Store, cgroups cgroup.Hierarchy, monitor string, keep Retention) error {
	ended, ids, err := store.SplitEnded()
	if err != nil {
		return err
	}
	s := sweeper{store: store, cgroups: cgroups, monitor: monitor, expired: map[string]bool{}}
	over := Retention{Count: keep.Count}.chooseExpired(ended, time.Now())
	for _, e := range over[:min(len(over), sweepAtOnce)] {
		id := store.GangOf(e.ID)
		s.expired[id] = true
		ids = append(ids, id)
	}
	return s.sweep(ctx, ids)
}

type sweeper struct {
	store   tasks.Store
	cgroups cgroup.Hierarchy
	monitor string // the program, see Adopt
	// expired are the tasks to remove if they have ended.
	expired map[string]bool
}

// sweep handles these tasks.
func (s sweeper) sweep(ctx context.Context, ids []string) error {
	gate, err := lock.TryOpen(s.store.TasksDir(), lock.Exclusive)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, lock.ErrBusy) {
		return nil
	}
	if err != nil {
		return err
	}
	leftovers, err := s.findLeftovers(ids)
	err = errors.Join(err, gate.Close())
	for _, l := range leftovers {
		err = errors.Join(err, s.cleanUp(ctx, l))
	}
	return err
}

// leftover is a task that no process held. This process has locked it.
type leftover struct {
	tasks.Paths
	lock        *os.File
	disposition disposition
	rec         tasks.Record // zero without a record
}

// disposition is what Sweep does with a task that no process holds.
type disposition int

const (
	leaveAlone    disposition = iota
	removeEnded               // remove the task; its processes have ended
	killFirst                 // kill its processes, then remove it
	recordUnknown             // record an unknown end and keep the task
	adopt                     // start a new monitor
)

// finding is the state of a task that no process holds.
type finding struct {
	rec *tasks.Record // nil: killed before the record was written, or while it was being removed
	// begun means that the container was or may have been started, ended that its end is recorded.
	begun, ended bool
	// ofGang means that the task is a rank of an existing gang, and is handled with the gang.
	ofGang bool
	// previousBoot means that the task is of an earlier boot of the machine, populated that it has
	// processes.
	previousBoot, populated bool
	// expired means that the task is removed if it has ended.
	expired bool
}

func (f finding) disposition() disposition {
	switch {
	case f.rec == nil && f.populated:
		return leaveAlone
	case f.rec == nil:
		return removeEnded
	case f.ofGang:
		return leaveAlone
	case f.rec.Member != nil && f.populated:
		return killFirst
	case f.rec.Member != nil:
		return removeEnded
	case (f.ended || f.previousBoot) && (f.rec.Remove || f.expired):
		return removeEnded
	case f.ended:
		return leaveAlone
	case f.previousBoot && (f.begun || f.rec.Queued) && !f.rec.Remove:
		return leaveAlone // berth ps shows it as lost
	case f.previousBoot:
		return removeEnded
	case f.rec.Detached && f.begun:
		return adopt
	case f.rec.Detached:
		return killFirst // see removeOrRecordUnstarted
	case f.populated && f.begun:
		return adopt
	case f.populated:
		return leaveAlone // the runtime starts the container by itself; the next sweep finds it
	case f.begun && !f.rec.Remove:
		return recordUnknown
	}
	return removeEnded
}

// findLeftovers locks and returns the tasks that no process holds and that Sweep has to handle. The
// caller holds the exclusive lock of the tasks' directory: a new task's directory is created and
// locked under the shared one.
func (s sweeper) findLeftovers(ids []string) (found []leftover, err error) {
	for _, id := range ids {
		p := s.store.Paths(id)
		held, busy := lock.TryOpen(p.Dir, lock.Exclusive)
		if busy != nil {
			continue // the launcher or monitor lives
		}
		l := leftover{Paths: p, lock: held}
		if unsure := s.inspect(&l); unsure != nil || l.disposition == leaveAlone {
			err = errors.Join(err, unsure, held.Close())
			continue
		}
		found = append(found, l)
	}
	return found, err
}

// inspect sets a leftover's record and disposition. A task with a record of a newer version is left
// alone; a damaged record counts as missing.
func (s sweeper) inspect(l *leftover) error {
	var f finding
	rec, err := s.store.Record(l.ID)
	var broken *tasks.BrokenError
	switch {
	case err == nil:
		f.rec, l.rec = &rec, rec
	case errors.As(err, &broken) && !broken.IsDamaged():
		l.disposition = leaveAlone
		return nil
	case broken == nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if f.rec != nil {
		exit, err := s.store.Exit(rec.ID)
		if errors.As(err, &broken) {
			l.disposition = leaveAlone // berth ps shows it as broken
			return nil
		}
		if err != nil {
			return err
		}
		boot, err := s.store.BootID()
		if err != nil {
			return err
		}
		f.ended, f.previousBoot, f.expired = exit != nil, rec.BootID != boot, s.expired[rec.ID]
		f.begun = s.hasBegun(l)
		if rec.Member != nil {
			_, err := os.Lstat(s.store.Path(rec.Member.Gang, "task.json"))
			f.ofGang = err == nil
		}
	}
	if !f.previousBoot && !f.ended {
		if f.populated, err = s.cgroups.Populated(l.Cgroup()); err != nil {
			return err
		}
	}
	l.disposition = f.disposition()
	return nil
}

// hasBegun reports whether a task's container was started: the monitor of a detached task records the
// life, and for a task in the foreground the runtime writes the pid file.
func (s sweeper) hasBegun(l *leftover) bool {
	if l.rec.Detached {
		life, err := s.store.Life(l.rec.ID)
		return life != nil || err != nil
	}
	_, err := os.Lstat(l.PIDFile())
	return err == nil
}

// cleanUp carries out a leftover's disposition, and releases its lock.
func (s sweeper) cleanUp(ctx context.Context, l leftover) error {
	if l.disposition == adopt { // the monitor takes the lock itself
		return errors.Join(l.lock.Close(), startNewMonitor(ctx, s.store, s.monitor, l.ID))
	}
	return errors.Join(s.removeOrRecord(ctx, l), l.lock.Close())
}

func (s sweeper) removeOrRecord(ctx context.Context, l leftover) error {
	switch l.disposition {
	case recordUnknown:
		if err := RemoveContainer(ctx, l.Paths, s.cgroups); err != nil {
			return err
		}
		return recordUnknownExit(s.store, l.rec)
	case killFirst:
		if err := killProcesses(ctx, l.rec); err != nil {
			return err
		}
	}
	return runSteps(
		func() error { return removeRanks(ctx, s.store, l.rec) },
		func() error { return RemoveContainer(ctx, l.Paths, s.cgroups) },
		func() error {
			if l.disposition != killFirst {
				return nil
			}
			return releaseLease(ctx, s.store, l.ID)
		},
		func() error {
			if l.disposition == killFirst {
				return removeOrRecordUnstarted(s.store, l.rec)
			}
			return s.store.Remove(l.ID)
		},
	)
}

// removeOrRecordUnstarted removes a task that has never started. If the task's id was reported while it
// waited for devices, the record stays, with an unknown end.
func removeOrRecordUnstarted(store tasks.Store, r tasks.Record) error {
	if r.Queued && !r.Remove {
		return recordUnknownExit(store, r)
	}
	return store.Remove(r.ID)
}

// recordUnknownExit records an unknown end of a task whose launcher was killed.
func recordUnknownExit(store tasks.Store, r tasks.Record) error {
	return store.WriteExit(r.ID, tasks.Exit{
		Code: supervise.CodeUnknown, Error: "its launcher was killed, and how it ended isn't known",
		Started: r.Created, Finished: time.Now().UTC(),
	})
}
