package control

import (
	"context"
	"errors"
	"time"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// Retention bounds what is kept of tasks that have ended. Zero values bound nothing.
type Retention struct {
	Age   time.Duration // since the end
	Count int           // ranks of gangs count
}

// chooseExpired returns those that aren't to be kept. ended is sorted, the earliest end first.
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

// sweepAtOnce is how many tasks a launch removes at most: it has to be fast, and adds one.
const sweepAtOnce = 2

// PruneEnded removes what is kept of tasks that have ended, as far as r doesn't keep it, and
// tasks that a restart of the machine ended as long ago. It stops between two tasks when ctx
// ends, which is no error. removed is told of each task before that is removed; it may be nil.
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
			continue // it was removed, is broken, which berth doctor tells, or is a gang that runs
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

// lostBefore returns those that a restart of the machine has ended, and in which nothing has
// changed for r.Age.
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
