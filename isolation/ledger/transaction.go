package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/process"
)

// transaction is one change of the ledger, made under its lock.
type transaction struct {
	*state
	ledger *Ledger
	me     self
	now    time.Time
	uptime time.Duration

	inspected map[string]bool // ids of leases that Options.Inspect has seen
	pending   []Lease         // leases to be removed once it has seen them

	dirty  bool
	added  []string // new leases
	put    []Lease  // receipts to write
	drop   []string // receipts to remove
	events []event
}

// update calls f under the lock and writes what f changed, also if f returns an error: leases
// of dead holders that f has freed stay freed.
func (l *Ledger) update(ctx context.Context, f func(*transaction) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.store.makeDirs(); err != nil {
		return err
	}
	me, err := l.world.Self()
	if err != nil {
		return err
	}
	tx := &transaction{ledger: l, me: me}
	err = l.store.withLock(ctx, l.limit, func() error {
		l.step("locked")
		tx.now, tx.uptime = l.world.Now()
		if tx.state, err = l.readCurrent(tx); err != nil {
			return err
		}
		ferr := f(tx)
		if err := tx.commit(); err != nil {
			tx.events = nil
			return errors.Join(err, ferr)
		}
		return ferr
	})
	l.step("unlocked")
	if err := l.events.append(tx.events); err != nil {
		l.log.Warn("write event log", "error", err)
	}
	return err
}

// readCurrent reads the ledger. If the file is missing but receipts exist, it rebuilds the ledger
// from the receipts of live holders.
func (l *Ledger) readCurrent(tx *transaction) (*state, error) {
	st, found, err := l.store.readOutline()
	if err != nil || found {
		return &st, err
	}
	kept, dropped, err := l.readReceipts(tx.me)
	if err != nil {
		return nil, err
	}
	for _, k := range kept {
		st.leases = append(st.leases, newRecord(k))
		tx.addEvent("repaired", k, "the ledger was missing")
		tx.dirty = true
	}
	for _, d := range dropped {
		l.log.Warn("drop receipt", "file", d.File, "reason", d.Why)
	}
	return &st, nil
}

// commit writes what f changed. The receipts come first: so each lease in the ledger has a receipt
// unless it is being released, and a receipt without a lease was never granted. On an error no new
// lease is held, with the one exception that withdrawAdded describes.
func (tx *transaction) commit() error {
	if !tx.dirty {
		return nil
	}
	l := tx.ledger
	s := l.store
	s.sync = l.durable()
	if len(tx.drop) > 0 {
		if err := tx.tellGranted(tx.added); err != nil {
			return err
		}
	}
	for _, p := range tx.put {
		if err := s.writeReceipt(p); err != nil {
			return errors.Join(err, tx.removeAddedReceipts())
		}
		l.step("receipt written")
	}
	for _, id := range tx.drop {
		if err := s.removeReceipt(id); err != nil {
			return errors.Join(err, tx.removeAddedReceipts())
		}
		l.step("receipt removed")
	}
	if err := s.writeLedger(*tx.state); err != nil {
		return errors.Join(err, tx.removeAddedReceipts())
	}
	l.step("ledger written")
	if len(tx.put) > 0 {
		if err := tx.tellGranted(nil); err != nil {
			return errors.Join(err, tx.withdrawAdded(s))
		}
	}
	return nil
}

// removeAddedReceipts removes the receipts of new leases that the ledger doesn't name. Otherwise they
// would count as leases once the ledger is lost.
func (tx *transaction) removeAddedReceipts() (err error) {
	for _, id := range tx.added {
		err = errors.Join(err, tx.ledger.store.removeReceipt(id))
	}
	return err
}

// withdrawAdded removes new leases from the ledger after Granted has failed. If Granted fails without
// them as well, they stay until their holders are dead, because their devices may be open to the holders.
func (tx *transaction) withdrawAdded(s store) error {
	if len(tx.added) == 0 {
		return nil
	}
	if err := tx.tellGranted(tx.added); err != nil {
		return fmt.Errorf("withdraw lease %s: %w", tx.added[0], err)
	}
	tx.leases = slices.DeleteFunc(tx.leases, func(r record) bool { return slices.Contains(tx.added, r.id) })
	return errors.Join(tx.removeAddedReceipts(), s.writeLedger(*tx.state))
}

// tellGranted calls Options.Granted with all leases except those whose ids are in without.
func (tx *transaction) tellGranted(without []string) error {
	if tx.ledger.granted == nil {
		return nil
	}
	if err := tx.readAllLeases(); err != nil {
		return err
	}
	var all []Lease
	for _, r := range tx.leases {
		if !slices.Contains(without, r.id) {
			all = append(all, *r.v)
		}
	}
	return tx.ledger.granted(all)
}

// readAllLeases decodes all leases completely, as judge requires.
func (tx *transaction) readAllLeases() error {
	if err := tx.ledger.store.codec.decodeLeases(tx.state); err != nil {
		return fileError(tx.ledger.store.ledgerPath(), err)
	}
	return nil
}

// readLease decodes the lease at i completely.
func (tx *transaction) readLease(i int) (Lease, error) {
	one := state{leases: tx.leases[i : i+1]}
	if err := tx.ledger.store.codec.decodeLeases(&one); err != nil {
		return Lease{}, fileError(tx.ledger.store.ledgerPath(), err)
	}
	return *tx.leases[i].v, nil
}

// reapDead frees the leases of dead holders as far as they are inspected, binds reserved leases whose containers exist by
// now, notes which waiters' servers have ended, and removes dead waiters from the queue.
func (tx *transaction) reapDead() {
	w := tx.ledger.world
	tx.reaped = tx.uptime
	for i := len(tx.leases) - 1; i >= 0; i-- {
		switch v := judge(w, tx.me, *tx.leases[i].v); {
		case !v.live && tx.mayRemove(*tx.leases[i].v):
			tx.removeLease(i, "reaped", v.why)
		case v.bound != nil:
			tx.bindLease(i, *v.bound)
		}
	}
	for i := range tx.queue {
		if b := &tx.queue[i]; hasUnnoticedEnd(w, tx.me, b.v) {
			b.v.ServerEnded, b.raw, tx.dirty = tx.uptime, nil, true
		}
	}
	waiting := len(tx.queue)
	tx.queue = slices.DeleteFunc(tx.queue, func(b block[waiter]) bool { return !stillWaits(w, tx.me, b.v) })
	tx.dirty = tx.dirty || len(tx.queue) < waiting
}

// removeLease ends the lease at i, which must have been read.
func (tx *transaction) removeLease(i int, event, why string) {
	l := *tx.leases[i].v
	tx.leases = slices.Delete(tx.leases, i, i+1)
	tx.drop = append(tx.drop, l.ID)
	tx.dirty = true
	tx.addEvent(event, l, why)
}

// bindLease records that a lease is bound.
func (tx *transaction) bindLease(i int, l Lease) {
	tx.leases[i] = newRecord(l)
	tx.put = append(tx.put, l)
	tx.dirty = true
	tx.addEvent("bound", l, "")
}

// findLease returns the place of a lease, -1 if there is none of that ID.
func (tx *transaction) findLease(id string) int {
	return slices.IndexFunc(tx.leases, func(r record) bool { return r.id == id })
}

// removeTicket removes a ticket from the queue. A missing ticket is not an error.
func (tx *transaction) removeTicket(id string) {
	if i := findTicket(tx.queue, id); i >= 0 {
		tx.queue, tx.dirty = slices.Delete(tx.queue, i, i+1), true
	}
}

// isTidy reports whether an acquire may grant free devices without further checks: the queue is
// empty, dead holders were reaped within reapInterval, and no lease is for the owner's container.
func (tx *transaction) isTidy(o Owner) bool {
	age := tx.uptime - tx.reaped
	if len(tx.queue) > 0 || age < 0 || age >= reapInterval {
		return false
	}
	name, err := json.Marshal(o.Container)
	return err == nil && !slices.ContainsFunc(tx.leases, func(r record) bool {
		return o.Container != "" && (r.raw == nil || bytes.Contains(r.raw, name))
	})
}

// refuseSecond returns ErrHolds if the owner's container already has a lease.
func (tx *transaction) refuseSecond(o Owner) error {
	for _, l := range tx.leases {
		if o.Container != "" && sameContainer(l.v.Owner, o.Container, o.RuntimeRoot) {
			return fmt.Errorf("acquire for container %s: %w: %s", o.Container, ErrHolds, l.id)
		}
	}
	return nil
}

func (tx *transaction) grantLease(a Ask, devices []gpu.Device, ticket *waiter) Lease {
	l := Lease{
		ID: tx.newID(), State: Reserved, Devices: devices, Request: a.Request.String(),
		Owner: a.Owner, Since: tx.now.Round(0), Ticks: uint64(tx.uptime / process.Tick),
	}
	l.Owner.OwnCgroup = cgroupPopulated(tx.ledger.world, tx.me, l.Owner, l.Owner.Cgroup) == no
	tx.leases = append(tx.leases, newRecord(l))
	tx.added = append(tx.added, l.ID)
	tx.put = append(tx.put, l)
	tx.dirty = true
	waited := time.Duration(0)
	if ticket != nil {
		waited = tx.now.Sub(ticket.Since)
	}
	tx.addEvent("acquired", l, "").Waited = waited.Seconds()
	return l
}

// idLength is the length of a lease's or a waiter's id, in hex digits.
const idLength = 12

func (tx *transaction) newID() string {
	for {
		if id := randomID(); tx.findLease(id) < 0 {
			return id
		}
	}
}

// randomID returns an id from the runtime's own generator, which the kernel has seeded: an id is
// only a name, and knowing it grants nothing.
func randomID() string { return fmt.Sprintf("%0*x", idLength, rand.Uint64()>>(64-4*idLength)) }
