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

// Sweep looks at the tasks that have neither launcher nor monitor: what killed launchers left
// is removed, a task that runs gets a new monitor, and what people want to keep stays. monitor
// is as for Adopt.
//
// Of the tasks that have ended and are kept, the two that ended first are removed if there are
// more than keep.Count, so the number of kept tasks stays bounded without the timer.
//
// It does nothing while another process sweeps, or makes a task's directory.
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
	// expired are tasks that aren't to be kept if they have ended.
	expired map[string]bool
}

// sweep sweeps these tasks.
func (s sweeper) sweep(ctx context.Context, ids []string) error {
	gate, err := lock.TryOpen(s.store.All(), lock.Exclusive)
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

// leftover is a task that no process held. It is locked by this one now.
type leftover struct {
	tasks.Paths
	lock        *os.File
	disposition disposition
	rec         tasks.Record // zero without one
}

// disposition is what is to be done with a task that no process holds.
type disposition int

const (
	leaveAlone    disposition = iota
	removeEnded               // remove all of it; its processes have ended
	killFirst                 // kill its processes, and remove all of it
	recordUnknown             // record that it has ended, and keep it
	adopt                     // start a new monitor
)

// finding is what there is of a task that no process holds.
type finding struct {
	rec *tasks.Record // nil: its launcher had only begun, or it was being removed
	// begun: its container was started, or may have been. ended: how it ended is recorded.
	begun, ended bool
	// ofGang: it is a rank of a gang that is there, and comes with that.
	ofGang bool
	// past: it is of an earlier boot of the machine. populated: processes are left.
	past, populated bool
	// expired: it isn't to be kept when it has ended.
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
	case (f.ended || f.past) && (f.rec.Remove || f.expired):
		return removeEnded
	case f.ended:
		return leaveAlone
	case f.past && (f.begun || f.rec.Queued) && !f.rec.Remove:
		return leaveAlone // so that people see what was
	case f.past:
		return removeEnded
	case f.rec.Detached && f.begun:
		return adopt
	case f.rec.Detached:
		return killFirst // see removeOrRecordUnstarted
	case f.populated && f.begun:
		return adopt
	case f.populated:
		return leaveAlone // its runtime goes on by itself, and the container is found by the next sweep
	case f.begun && !f.rec.Remove:
		return recordUnknown
	}
	return removeEnded
}

// findLeftovers is called with the lock of all tasks, under which a directory appears only
// together with its own lock.
func (s sweeper) findLeftovers(ids []string) (found []leftover, err error) {
	for _, id := range ids {
		p := s.store.Paths(id)
		held, busy := lock.TryOpen(p.Dir, lock.Exclusive)
		if busy != nil {
			continue // its launcher or its monitor lives
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

// inspect sets what is to be done with a leftover. Records of newer versions are left alone,
// and one that is damaged counts as none.
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
			l.disposition = leaveAlone // berth ps tells of it
			return nil
		}
		if err != nil {
			return err
		}
		boot, err := s.store.BootID()
		if err != nil {
			return err
		}
		f.ended, f.past, f.expired = exit != nil, rec.BootID != boot, s.expired[rec.ID]
		f.begun = s.hasBegun(l)
		if rec.Member != nil {
			_, err := os.Lstat(s.store.Path(rec.Member.Gang, "task.json"))
			f.ofGang = err == nil
		}
	}
	if !f.past && !f.ended {
		if f.populated, err = s.cgroups.Populated(l.Cgroup()); err != nil {
			return err
		}
	}
	l.disposition = f.disposition()
	return nil
}

// hasBegun says whether a container was started: of a detached task its monitor records it,
// of another one the runtime writes the pid file.
func (s sweeper) hasBegun(l *leftover) bool {
	if l.rec.Detached {
		life, err := s.store.Life(l.rec.ID)
		return life != nil || err != nil
	}
	_, err := os.Lstat(l.PIDFile())
	return err == nil
}

// cleanUp does what is to be done with a leftover, and gives up its lock.
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
		func() error {
			if l.rec.ID != "" {
				return nil
			}
			return s.store.Prune() // it may have a name that no record tells
		},
	)
}

// removeOrRecordUnstarted removes the record of a task that has never started. If the task's id was
// reported while it waited for devices, the record stays and gets an end.
func removeOrRecordUnstarted(store tasks.Store, r tasks.Record) error {
	if r.Queued && !r.Remove {
		return recordUnknownExit(store, r)
	}
	return store.Remove(r.ID)
}

// recordUnknownExit records that a task has ended whose launcher was killed.
func recordUnknownExit(store tasks.Store, r tasks.Record) error {
	return store.WriteExit(r.ID, tasks.Exit{
		Code: supervise.CodeUnknown, Error: "its launcher was killed, and how it ended isn't known",
		Started: r.Created, Finished: time.Now().UTC(),
	})
}
