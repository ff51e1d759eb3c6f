package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// pollInterval is how often a waiting process checks without a change of the ledger: the end of a
// container doesn't change the ledger.
const pollInterval = 400 * time.Millisecond

// waitForTurn waits in the queue until the request is granted, its time is over or ctx ends.
func (l *Ledger) waitForTurn(ctx context.Context, a Ask) (lease Lease, err error) {
	started := time.Now()
	ticket, err := l.newTicket(a)
	if err != nil {
		return Lease{}, err
	}
	if lease, err = l.attempt(ctx, a, &ticket, true); !errors.Is(err, ErrBusy) {
		return lease, err
	}
	inQueue := true
	defer func() {
		if inQueue { // ctx ended, the ledger broke, or the callback panicked
			l.leaveQueue(ctx, ticket.ID)
		}
	}()
	changed, cancel := l.changes.Subscribe()
	defer cancel()
	news := &waitReporter{to: a.Waiting}
	for looked, first := started, true; ; first = false {
		news.report(err)
		if first {
			if err := l.updateCgroup(ctx, &a, &ticket); err != nil {
				return Lease{}, err
			}
		} else { // a change before the watch began would be missed
			select {
			case <-ctx.Done():
			case <-changed:
			case <-time.After(time.Until(l.nextCheck(a, started))):
			}
		}
		if ctx.Err() != nil {
			return Lease{}, withWaited(fmt.Errorf("wait for %s: %w: %w", a.Request, ctx.Err(), err), started)
		}
		// A request for a process that has ended would be removed as dead by others, and queued again here, without end.
		if alive, err := isAlive(l.world, a.Waiter); a.Waiter.PID != 0 && err == nil && !alive {
			return Lease{}, withWaited(fmt.Errorf("wait for %s: process %d, which asks, has ended", a.Request, a.Waiter.PID), started)
		}
		if a.Renew != nil {
			if a.Inventory, err = a.Renew(ctx); err != nil {
				return Lease{}, fmt.Errorf("wait for %s: %w", a.Request, err)
			}
		}
		over := a.Wait > 0 && time.Since(started) >= a.Wait
		deep := time.Since(looked) >= l.poll
		if deep {
			looked = time.Now()
		}
		if !over && a.Waiter.PID != 0 && l.world.Halted(a.Waiter.PID) {
			continue // it couldn't use the devices; a process that waits for itself doesn't run then
		}
		if !over {
			if busy := l.checkTurn(a, ticket.ID, deep); busy != nil {
				err = busy
				continue
			}
		}
		lease, err = l.attempt(ctx, a, &ticket, !over)
		if over || !errors.Is(err, ErrBusy) {
			inQueue = err != nil && !errors.Is(err, ErrBusy)
			return lease, withWaited(err, started)
		}
	}
}

// updateCgroup corrects the proof of life of a process that Ask.Waiting has moved to another cgroup:
// a detached launch leaves its session when it waits.
func (l *Ledger) updateCgroup(ctx context.Context, a *Ask, ticket *waiter) error {
	now, err := l.world.OwnCgroup()
	if err != nil || now == ticket.Cgroup {
		return nil //nolint:nilerr // what can't be read stays as it was
	}
	a.Owner.Maker, ticket.Owner.Maker, ticket.Cgroup = now, now, now
	return l.update(ctx, func(tx *transaction) error {
		if i := findTicket(tx.queue, ticket.ID); i >= 0 {
			tx.queue[i], tx.dirty = block[waiter]{v: *ticket}, true
		}
		return nil
	})
}

func (l *Ledger) newTicket(a Ask) (waiter, error) {
	me, err := l.world.Self()
	if err != nil {
		return waiter{}, err
	}
	now, uptime := l.world.Now()
	ticket := waiter{
		ID: randomID(), Request: a.Request.String(), Owner: a.Owner, Since: now.Round(0), Arrived: uptime,
		Process: me.Process, Cgroup: me.cgroup,
	}
	if a.Waiter.PID == 0 {
		return ticket, nil
	}
	ticket.Process = a.Waiter
	if me.Namespace == a.Waiter.Namespace {
		ticket.ServerPID, ticket.ServerStart = me.PID, me.Start
	}
	st, _, err := l.store.readFull()
	for _, w := range st.queue {
		if w.v.Process == ticket.Process && w.v.Request == ticket.Request {
			ticket.ID, ticket.Since, ticket.Arrived = w.v.ID, w.v.Since, w.v.Arrived
		}
	}
	return ticket, err
}

// nextCheck returns the time of the next check: about pollInterval from now, but not after the end of
// Wait.
func (l *Ledger) nextCheck(a Ask, started time.Time) time.Time {
	next := time.Now().Add(l.poll + rand.N(l.poll/4)) // so that not all waiting processes check at once
	if end := started.Add(a.Wait); a.Wait > 0 && end.Before(next) {
		return end
	}
	return next
}

// checkTurn checks without the lock whether the request could be granted now. It returns a
// *BusyError if not, and nil if an attempt should be made. It returns nil too if the ledger can't be
// read: the attempt then fails with the reason. A deep check also examines the processes of holders
// and of requests ahead. Other checks rely on the process that changed the ledger, which has
// examined them.
func (l *Ledger) checkTurn(a Ask, ticket string, deep bool) error {
	me, err := l.world.Self()
	if err != nil {
		return nil
	}
	st, found, err := l.store.readFull()
	at := findTicket(st.queue, ticket)
	if err != nil || !found || at < 0 {
		return nil
	}
	if deep && !l.allLive(me, st.leases, st.queue[:at]) {
		return nil
	}
	held, _ := leasedDevices(st.leases)
	_, err = matchInTurn(a.Inventory, held, l.requestsAhead(me, st.queue, ticket, deep), a.Request)
	if !errors.Is(err, ErrBusy) {
		return nil
	}
	return withHolders(err, a, st.leases)
}

func (l *Ledger) allLive(me self, leases []record, line []block[waiter]) bool {
	for _, r := range leases {
		if !judge(l.world, me, *r.v).live {
			return false
		}
	}
	for _, b := range line {
		if !stillWaits(l.world, me, b.v) || hasUnnoticedEnd(l.world, me, b.v) {
			return false
		}
	}
	return true
}

// leaveQueue removes the ticket, even after ctx has ended. If that fails, a later reap removes the
// ticket once this process has ended.
func (l *Ledger) leaveQueue(ctx context.Context, id string) {
	err := l.update(context.WithoutCancel(ctx), func(tx *transaction) error {
		tx.removeTicket(id)
		return nil
	})
	if err != nil {
		l.log.Info("leave the queue", "ticket", id, "error", err)
	}
}

func withWaited(err error, started time.Time) error {
	var busy *BusyError
	if errors.As(err, &busy) {
		busy.Waited = time.Since(started)
	}
	return err
}

// waitReporter tells a caller what its request waits for, once for each change.
type waitReporter struct {
	to   func(BusyError)
	last string
}

func (n *waitReporter) report(err error) {
	var busy *BusyError
	if n.to == nil || !errors.As(err, &busy) {
		return
	}
	key := fmt.Sprint(busy.Free, busy.Ahead)
	for _, h := range busy.Holders {
		key += " " + h.ID
	}
	key += fmt.Sprint(busy.Occupied)
	if key != n.last {
		n.last = key
		n.to(*busy)
	}
}
