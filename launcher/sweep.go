package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// sweep looks at tasks that nobody holds: what launchers left that were killed is
// removed, a detached task gets a new monitor, and what people want to keep stays. A
// container that outlived its launcher in the foreground is left alone. Each launch
// begins with it.
func sweep(ctx context.Context, o Options, h *host) error {
	return sweepSome(ctx, o, h, func(string) bool { return true })
}

// sweepSome is sweep for those tasks that are wanted.
func sweepSome(ctx context.Context, o Options, h *host, wanted func(id string) bool) error {
	all := filepath.Join(o.Data, "tasks")
	gate, err := lock.TryOpen(all, lock.Exclusive)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, lock.ErrBusy) {
		// No tasks yet, or somebody is making one or sweeping: the next launch will.
		return nil
	}
	if err != nil {
		return err
	}
	leftovers, err := findLeftovers(o, h, all, wanted)
	err = errors.Join(err, gate.Close())
	for _, l := range leftovers {
		err = errors.Join(err, l.deal(ctx, o, h))
	}
	return err
}

// leftover is a task that nobody held, held by us now.
type leftover struct {
	place place
	lock  *os.File
	fate  fate
	rec   tasks.Record
}

// fate is what is to be done with a task that nobody holds.
type fate int

const (
	stay    fate = iota
	remove       // all of it, when its processes have ended
	end          // and its processes before
	settle       // say that it has ended, and keep it
	adopted      // it gets a new monitor
)

// finding is what there is of a task that nobody holds.
type finding struct {
	rec *tasks.Record // nil: its launcher had only begun, or somebody was removing it
	// begun: its container was started, or just might have been.
	begun, ended bool
	// ruled: it is a rank of a gang that is there, and that one's business.
	ruled bool
	// past: it is of an earlier boot of the machine. populated: processes are left.
	past, populated bool
}

// fate says what becomes of it.
func (f finding) fate() fate {
	switch {
	case f.rec == nil && f.populated:
		return stay
	case f.rec == nil:
		return remove
	case f.ruled:
		return stay
	case f.rec.Member != nil && f.populated:
		return end
	case f.rec.Member != nil:
		return remove
	case f.ended && f.rec.Remove:
		return remove
	case f.ended:
		return stay
	case f.past && f.begun && !f.rec.Remove:
		return stay // so that people see what was
	case f.past:
		return remove
	case f.rec.Detached && f.begun:
		return adopted
	case f.rec.Detached:
		return end // nobody was told that it has started
	case f.populated:
		return stay
	case f.begun && !f.rec.Remove:
		return settle
	}
	return remove
}

// findLeftovers runs with the gate closed: no task directory is without its lock.
func findLeftovers(o Options, h *host, all string, wanted func(id string) bool) ([]leftover, error) {
	entries, err := os.ReadDir(all)
	if err != nil {
		return nil, fmt.Errorf("look for leftovers: %w", err)
	}
	var found []leftover
	for _, e := range entries {
		if !wanted(e.Name()) {
			continue
		}
		p := placeOf(o, e.Name())
		held, busy := lock.TryOpen(p.dir, lock.Exclusive)
		if busy != nil {
			continue // its launcher or its monitor lives
		}
		l := leftover{place: p, lock: held}
		if unsure := l.look(o, h); unsure != nil || l.fate == stay {
			err = errors.Join(err, unsure, held.Close())
			continue
		}
		found = append(found, l)
	}
	return found, err
}

// look finds out what is to be done. A later berth's record is its business; one that
// nobody can read is as good as none.
func (l *leftover) look(o Options, h *host) error {
	store := o.store()
	var f finding
	rec, err := store.Record(l.place.id)
	var broken *tasks.BrokenError
	switch {
	case err == nil:
		f.rec, l.rec = &rec, rec
	case errors.As(err, &broken) && !broken.Hopeless():
		l.fate = stay
		return nil
	case broken == nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if f.rec != nil {
		exit, err := store.Exit(rec.ID)
		if errors.As(err, &broken) {
			l.fate = stay // berth ps tells
			return nil
		}
		if err != nil {
			return err
		}
		boot, err := store.BootID()
		if err != nil {
			return err
		}
		f.ended, f.past = exit != nil, rec.BootID != boot
		f.begun = l.begun(store)
		if rec.Member != nil {
			_, err := os.Lstat(store.Path(rec.Member.Gang, "task.json"))
			f.ruled = err == nil
		}
	}
	if !f.past && !f.ended {
		if f.populated, err = h.Cgroups.Populated(l.place.cgroup()); err != nil {
			return err
		}
	}
	l.fate = f.fate()
	return nil
}

// begun: of a detached task its monitor says so, of another one the runtime.
func (l *leftover) begun(store tasks.Store) bool {
	if l.rec.Detached {
		life, err := store.Life(l.rec.ID)
		return life != nil || err != nil
	}
	_, err := os.Lstat(l.place.pidFile())
	return err == nil
}

func (l *leftover) deal(ctx context.Context, o Options, h *host) error {
	switch l.fate {
	case adopted:
		// Its monitor takes the lock itself.
		return errors.Join(l.lock.Close(), adopt(ctx, o.store(), o.Monitor, l.place.id))
	case settle:
		err := l.place.removeContainer(ctx, h)
		if err == nil {
			err = o.store().WriteExit(l.rec.ID, tasks.Exit{
				Code: supervise.CodeUnknown, Error: "its launcher was killed, and how it ended isn't known",
				Started: l.rec.Created, Finished: time.Now().UTC(),
			})
		}
		return errors.Join(err, l.lock.Close())
	case end:
		if err := endAll(ctx, l.rec); err != nil {
			return errors.Join(err, l.lock.Close())
		}
	}
	err := removeRanks(ctx, o.store(), l.rec)
	if err == nil {
		err = l.place.removeContainer(ctx, h)
	}
	if err == nil && l.fate == end {
		err = giveBack(ctx, o.store(), l.place.id)
	}
	if err == nil {
		err = o.store().Remove(l.place.id)
	}
	if err == nil && l.rec.ID == "" {
		err = o.store().Prune() // it may have a name that no record says
	}
	return errors.Join(err, l.lock.Close())
}

// endAll ends every process of a task.
func endAll(ctx context.Context, r tasks.Record) error {
	tree, err := cgroup.Detect(r.CgroupMount)
	if err != nil {
		return err
	}
	if err := tree.Kill(ctx, r.Cgroup); err != nil {
		return fmt.Errorf("end task %s: %w", r.ID, err)
	}
	return nil
}
