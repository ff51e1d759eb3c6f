package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
)

// Ask is one request for devices.
type Ask struct {
	// Owner becomes the lease's. Process and BootID default to the calling process's. Process may
	// have the pid alone. Cgroup is where the container is expected, "" if unknown.
	Owner   Owner
	Request request.Request
	// Inventory in which the request is matched.
	Inventory gpu.Inventory
	// Renew, if set, gives the inventory as it is now. A waiting request calls it before each
	// attempt, because the node can change meanwhile, and each request after an inspection (Options.Inspect)
	// that it needed. An error ends the request.
	Renew func(context.Context) (gpu.Inventory, error)
	// Stale, if set, is called under the lock before each attempt. If it returns true, Renew is called, and the attempt is
	// made anew: a device that an inspection has just found in use must not be granted by an older inventory.
	Stale func() bool
	// Wait is how long to wait in the queue: 0 fails at once with *BusyError, a
	// negative value waits for as long as ctx lives.
	Wait time.Duration
	// Waiter is the process that waits if it isn't the calling one, which then waits on its behalf;
	// it may have the pid alone. The place in the queue is the waiter's: if the calling process ends, the
	// next Acquire for the same process and request within ten seconds goes on with it. A waiter that is stopped
	// or frozen gets no devices until it goes on.
	Waiter Process
	// Waiting, if set, is called (from Acquire's goroutine) when the request has
	// to wait and whenever what it waits for changes.
	Waiting func(BusyError)
}

// Acquire leases all devices that the request asks for, or none. It first frees the leases of dead
// holders. The error Is ErrBusy (a *BusyError) if the devices aren't free within the time to wait,
// ErrHolds if the owner's container has a lease already, ErrCorrupt, ErrFuture, ErrOwnership or
// ErrLocked if the ledger can't be used; any other error is that of match.Choose, and waiting can't
// help. If ctx ends a wait, the error Is both ctx's and ErrBusy. On any error nothing is held, unless
// Options.Granted has failed both with the lease and without it: the lease then lasts as long as its owner.
func (l *Ledger) Acquire(ctx context.Context, a Ask) (Lease, error) {
	if _, err := match.Candidates(a.Inventory, a.Request); err != nil {
		return Lease{}, err
	}
	me, err := l.world.Self()
	if err != nil {
		return Lease{}, err
	}
	if a.Owner.Process, err = l.completeProcess(a.Owner.Process, me); err != nil {
		return Lease{}, fmt.Errorf("acquire for process %d: %w", a.Owner.Process.PID, err)
	}
	if a.Waiter.PID != 0 {
		if a.Waiter, err = l.completeProcess(a.Waiter, me); err != nil {
			return Lease{}, fmt.Errorf("acquire for process %d: %w", a.Waiter.PID, err)
		}
	}
	if a.Owner.BootID == "" {
		a.Owner.BootID = me.boot
	}
	a.Owner.CgroupNS, a.Owner.Maker, a.Owner.Cgroup = me.cgroupNS, me.cgroup, ownCgroup(a.Owner.Cgroup)
	if a.Owner, err = a.Owner.sanitize(); err != nil {
		return Lease{}, err
	}
	if a.Wait == 0 {
		return l.attempt(ctx, a, nil, false)
	}
	return l.waitForTurn(ctx, a)
}

// ownCgroup returns the cleaned path, or "" for the root cgroup, which is never a container's own.
func ownCgroup(path string) string {
	if path == "" {
		return ""
	}
	if path = filepath.Clean(path); path == "/" {
		return ""
	}
	return path
}

// attempt leases the devices if it is the request's turn. Otherwise the ticket is in the queue
// afterwards if stay is set, and removed from it if not.
func (l *Ledger) attempt(ctx context.Context, a Ask, ticket *waiter, stay bool) (lease Lease, err error) {
	renew := func() (err error) { // Inspect may have found processes that use devices
		if a.Renew != nil {
			a.Inventory, err = a.Renew(ctx)
		}
		return err
	}
	err = l.updateInspected(ctx, renew, func(tx *transaction) error {
		if a.Stale != nil && a.Renew != nil && a.Stale() {
			return errAgain
		}
		if held, ok := leasedDevices(tx.leases); ok && tx.isTidy(a.Owner) {
			devices, err := matchInTurn(a.Inventory, held, nil, a.Request)
			if err == nil {
				lease = tx.grantLease(a, devices, ticket)
				return nil
			}
		}
		lease, err = tx.serveRequest(a, ticket, stay)
		return err
	})
	if err != nil {
		return Lease{}, err
	}
	return lease, nil
}

// reapInterval is the time after a reap during which an acquire doesn't reap again, provided that it
// finds enough free devices. Checking all holders is the most expensive part of an acquire.
const reapInterval = 100 * time.Millisecond

// serveRequest reaps dead holders, then grants the request or updates its ticket in the queue.
func (tx *transaction) serveRequest(a Ask, ticket *waiter, stay bool) (Lease, error) {
	l := tx.ledger
	if err := tx.readAllLeases(); err != nil {
		return Lease{}, err
	}
	if err := l.store.sweepReceipts(tx.leases); err != nil {
		l.log.Warn("sweep receipts", "error", err)
	}
	tx.reapDead()
	if err := tx.checkInspected(); err != nil {
		return Lease{}, err
	}
	if err := tx.refuseSecond(a.Owner); err != nil {
		return Lease{}, err
	}
	id := ""
	if ticket != nil {
		id = ticket.ID
	}
	held, _ := leasedDevices(tx.leases)
	devices, err := matchInTurn(a.Inventory, held, l.requestsAhead(tx.me, tx.queue, id, true), a.Request)
	if err == nil {
		tx.removeTicket(id)
		return tx.grantLease(a, devices, ticket), nil
	}
	i := findTicket(tx.queue, id)
	switch {
	case !stay:
		tx.removeTicket(id)
	case i < 0 && errors.Is(err, ErrBusy):
		tx.queue, tx.dirty = enqueue(tx.queue, *ticket), true
	case i >= 0 && tx.queue[i].v.serverProcess() != ticket.serverProcess(): // this server goes on with it
		tx.queue[i], tx.dirty = block[waiter]{v: *ticket}, true
	}
	return Lease{}, withHolders(err, a, tx.leases)
}

// withHolders adds the holders of matching devices to a *BusyError.
func withHolders(err error, a Ask, leases []record) error {
	var busy *BusyError
	if errors.As(err, &busy) {
		if candidates, cerr := match.Candidates(a.Inventory, a.Request); cerr == nil {
			busy.Holders = conflictingLeases(a.Inventory, leases, candidates)
			for _, o := range a.Inventory.Occupied {
				if overlap([]gpu.Device{o.Device}, candidates) {
					busy.Occupied = append(busy.Occupied, o)
				}
			}
		}
	}
	return err
}

// completeProcess fills in what is 0 in a process of this pid namespace; a pid of 0 is
// the calling process.
func (l *Ledger) completeProcess(p Process, me self) (Process, error) {
	if p.PID == 0 {
		return me.Process, nil
	}
	if p.Namespace == 0 {
		p.Namespace = me.Namespace
	}
	if p.Start == 0 {
		s, err := l.world.Process(p.PID)
		if err != nil {
			return p, err
		}
		p.Start = s.Start
	}
	return p, nil
}

// Bind records the container's init and cgroup, o.Process and o.Cgroup, as the proof of life. The
// start and the namespace of the process may be 0, they are then read; a cgroup of "" leaves the one
// that the lease expects. o.Container and o.Bundle are recorded if the lease has none. The other
// fields of o are ignored. Bind is idempotent. The error Is ErrNotFound if there is no such lease
// (any more).
func (l *Ledger) Bind(ctx context.Context, id string, o Owner) error {
	me, err := l.world.Self()
	if err != nil {
		return err
	}
	if o.Process, err = l.completeProcess(o.Process, me); err != nil {
		return fmt.Errorf("bind lease %s to process %d: %w", id, o.Process.PID, err)
	}
	return l.update(ctx, func(tx *transaction) error {
		i := tx.findLease(id)
		if i < 0 {
			return fmt.Errorf("bind lease %s: %w", id, ErrNotFound)
		}
		lease, err := tx.readLease(i)
		if err != nil {
			return err
		}
		if lease.Owner.isBoundTo(o) && lease.State == Bound {
			return nil
		}
		lease.State, lease.Owner = Bound, tx.boundOwner(lease.Owner, o)
		if lease.Owner, err = lease.Owner.sanitize(); err != nil {
			return err
		}
		tx.bindLease(i, lease)
		return nil
	})
}

// isBoundTo reports whether Bind with o would change nothing.
func (has Owner) isBoundTo(o Owner) bool {
	own := ownCgroup(o.Cgroup)
	return has.Process == o.Process && (own == "" || own == has.Cgroup) &&
		has.Container == cmp.Or(has.Container, o.Container) && has.Bundle == cmp.Or(has.Bundle, o.Bundle)
}

// boundOwner returns the owner of a lease after Bind with o.
func (tx *transaction) boundOwner(owner, o Owner) Owner {
	owner.Process = o.Process
	owner.Reaper = o.Process.Namespace == tx.me.Namespace && tx.ledger.world.Reaper(o.Process.PID)
	owner.Container, owner.Bundle = cmp.Or(owner.Container, o.Container), cmp.Or(owner.Bundle, o.Bundle)
	if own := ownCgroup(o.Cgroup); own != "" {
		owner.OwnCgroup = owner.OwnCgroup && owner.Cgroup == own && owner.CgroupNS == tx.me.cgroupNS
		owner.Cgroup, owner.CgroupNS = own, tx.me.cgroupNS
	}
	return owner
}
