package launcher

import (
	"context"
	"time"

	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// wait supervises the task to its end, and returns its exit code.
func (t *task) wait(ctx context.Context, s *supervise.Signals) (int, error) {
	terms := supervise.TermsOf(t.rec, time.Time{})
	r, err := t.command.Wait(ctx, s, terms)
	t.late = r.Why == supervise.Overtime(terms.Timeout)
	return r.Code, err
}

// watchMemory is nil where it isn't watched: on v1, where that costs something, only a
// limit of the task's own is.
func (t *task) watchMemory() (*cgroup.OOMWatch, error) {
	if t.h.Cgroups.Version == cgroup.V1 && t.o.Memory == 0 {
		return nil, nil
	}
	return t.h.Cgroups.WatchOOM(t.place.Cgroup(), "container")
}

// starved notes whether a task that has ended ran out of memory, and is an error if it has
// ended badly.
func (t *task) starved() error {
	if t.ended.Code == 0 && !t.o.Keep || !t.oom.Killed() {
		return nil
	}
	t.ended.OOM = true
	if t.ended.Code == 0 {
		return nil
	}
	return &supervise.OutOfMemory{Code: t.ended.Code, Limit: t.o.Memory}
}

// overran notes that a task was ended because its time was over, and is an error if it has
// ended badly.
func (t *task) overran() error {
	if !t.late {
		return nil
	}
	t.ended.Error = supervise.Overtime(t.o.Timeout)
	if t.ended.Code == 0 {
		return nil
	}
	return &supervise.TimedOut{Code: t.ended.Code, After: t.o.Timeout}
}
