package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pollInterval is how often a waiter looks although the ledger didn't change: a
// container's death changes nothing in it.
const pollInterval = 400 * time.Millisecond

// waitForTurn waits in the queue until the request is granted, its time is over or ctx ends.
func (l *Ledger) waitForTurn(ctx context.Context, a Ask) (lease Lease, err error) {
	started := time.Now()
	if err := l.store.makeDirs(); err != nil {
		return Lease{}, err
	}
	ticket, err := l.newTicket(a)
	if err != nil {
		return Lease{}, err
	}
	if lease, err = l.attempt(ctx, a, &ticket, true); !errors.Is(err, ErrBusy) {
		return lease, err
	}
	inLine := true
	defer func() {
		if inLine { // ctx ended, the ledger broke, or the callback panicked
			l.leaveQueue(ctx, ticket.ID)
		}
	}()
	changes := watchDir(l.store.dir)
	defer changes.close()
	news := newWaitReporter(a.Waiting)
	for looked, first := started, true; ; first = false {
		news.report(err)
		if !first { // what changed before the watch began would be missed
			changes.wait(ctx, l.nextLook(a, started))
		}
		if ctx.Err() != nil {
			return Lease{}, withWaited(fmt.Errorf("wait for %s: %w: %w", a.Request, ctx.Err(), err), started)
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
		if !over {
			if busy := l.checkTurn(a, ticket.ID, deep); busy != nil {
				err = busy
				continue
			}
		}
		lease, err = l.attempt(ctx, a, &ticket, !over)
		if over || !errors.Is(err, ErrBusy) {
			inLine = err != nil && !errors.Is(err, ErrBusy)
			return lease, withWaited(err, started)
		}
	}
}

func (l *Ledger) newTicket(a Ask) (waiter, error) {
	me, err := l.world.Self()
	if err != nil {
		return waiter{}, err
	}
	now, uptime := l.world.Now()
	return waiter{
		ID: randomID(), Request: a.Request.String(), Owner: a.Owner, Since: now.Round(0), Arrived: uptime,
		Process: me.Process, Cgroup: me.cgroup,
	}, nil
}

// nextLook is when to look again: soon, and at the latest when the time is over.
func (l *Ledger) nextLook(a Ask, started time.Time) time.Time {
	next := time.Now().Add(l.poll + rand.N(l.poll/4)) // so that not all look at once
	if end := started.Add(a.Wait); a.Wait > 0 && end.Before(next) {
		return end
	}
	return next
}

// checkTurn reads without the lock what is in the way; nil means that an attempt is
// worth making. So is what can't be read: the attempt then fails with the reason.
// Only a deep look asks whether holders and those ahead live: between two of
// these, whoever changes the ledger has asked.
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
	_, err = matchInTurn(a.Inventory, held, requestsAhead(st.queue, ticket), a.Request)
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
		if !stillWaits(l.world, me, b.v) {
			return false
		}
	}
	return true
}

// leaveQueue takes the ticket out although the caller's time is over. Where even
// that fails, the ticket is taken out when the process has ended.
func (l *Ledger) leaveQueue(ctx context.Context, id string) {
	err := l.update(context.WithoutCancel(ctx), func(tx *transaction) error {
		tx.removeTicket(id)
		return nil
	})
	if err != nil {
		l.log.Warn("leave the line", "ticket", id, "error", err)
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

func newWaitReporter(to func(BusyError)) *waitReporter { return &waitReporter{to: to} }

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

// dirWatch tells when a file of a directory was replaced. Without inotify, whose
// instances are limited, there is only the clock. It is made for those who have to
// wait only: to close it takes the kernel some milliseconds.
type dirWatch struct{ f *os.File }

func watchDir(dir string) dirWatch {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return dirWatch{}
	}
	f := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO); err != nil {
		_ = f.Close() // nothing was written
		return dirWatch{}
	}
	return dirWatch{f}
}

func (c dirWatch) close() {
	if c.f != nil {
		_ = c.f.Close() // nothing was written
	}
}

// wait returns when something changed, at the given time, or when ctx ends.
func (c dirWatch) wait(ctx context.Context, until time.Time) {
	if c.f == nil || c.f.SetReadDeadline(until) != nil {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(until)):
		}
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = c.f.SetReadDeadline(time.Unix(1, 0)) }) // worked above
	defer stop()
	var events [4096]byte
	_, _ = c.f.Read(events[:]) // which of the three it was, the caller sees for itself
}
