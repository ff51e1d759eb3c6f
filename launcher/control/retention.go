package control

import (
	"context"
	"errors"
	"time"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// Retention bounds how many ended tasks are kept, and for how long. Zero means no bound.
type Retention struct {
	Age   time.Duration // since the end
	Count int           // ranks of gangs count
}

// chooseExpired returns the tasks that r doesn't keep. ended is sorted, the earliest end first.
func (r Retention) chooseExpired(ended []tasks.Ended, now time.Time) []tasks.Ended {
	n := 0
	if r.Count > 0 {
		n = max(0, len(ended)-r.Count)
	}
	for n < len(ended) && r.Age > 0 && now.Sub(ended[n].Finished) > r.Age {
		n++
	}
	return ended[:n]
}

// sweepAtOnce is how many tasks a launch removes at most. A launch has to be fast, and adds one task,
// so that two suffice to reduce their number.
const sweepAtOnce = 2

// PruneEnded removes the ended tasks that r doesn't keep, and tasks that ended with a previous boot of
// the machine and have not changed for r.Age. When ctx ends, it stops between two tasks without an
// error. removed is called before each task is removed; it may be nil.
func PruneEnded(ctx context.Context, store tasks.Store, r Retention, removed func(tasks.Record)) error {
	now := time.Now()
	ended, others, err := store.SplitEnded()
	if err != nil {
		return err
	}
	var ids []string
	for _, e := range r.chooseExpired(ended, now) {
		ids = append(ids, e.ID)
	}
	ids = append(ids, lostBefore(store, others, r, now)...)
	for _, id := range ids {
		if ctx.Err() != nil {
			break
		}
		t, e := store.Task(store.GangOf(id))
		if e != nil || !hasEnded(t) {
			continue // removed meanwhile, broken (berth doctor reports it), or a gang that runs
		}
		if removed != nil {
			removed(t.Record)
		}
		if e := Remove(ctx, store, t, false); ctx.Err() == nil {
			err = errors.Join(err, e)
		}
	}
	return err
}

// lostBefore returns the tasks that ended with a previous boot of the machine, and whose directory has
// not changed for r.Age.
func lostBefore(store tasks.Store, ids []string, r Retention, now time.Time) (lost []string) {
	boot, err := store.BootID()
	if err != nil || r.Age == 0 {
		return nil
	}
	for _, id := range ids {
		last, err := store.LastChange(id)
		if err != nil || now.Sub(last) <= r.Age {
			continue
		}
		if rec, err := store.Record(id); err == nil && rec.BootID != boot {
			lost = append(lost, id)
		}
	}
	return lost
}
