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
)

// change is one change of the ledger, made under its lock.
type change struct {
	*state
	ledger *Ledger
	me     self
	now    time.Time
	uptime time.Duration

	dirty  bool
	put    []Lease  // receipts to write
	drop   []string // receipts to remove
	events []event
}

// change lets f change the state under the lock, and writes what it changed, also
// if f returns an error: the dead that it found are dead in any case.
func (l *Ledger) change(ctx context.Context, f func(*change) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.store.prepare(); err != nil {
		return err
	}
	me, err := l.world.Self()
	if err != nil {
		return err
	}
	tx := &change{ledger: l, me: me}
	err = l.store.locked(ctx, l.limit, l.proc, func() error {
		l.step("locked")
		tx.now, tx.uptime = l.world.Now()
		if tx.state, err = l.current(tx); err != nil {
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
	if err := l.events.write(tx.events); err != nil {
		l.log.Warn("write events", "error", err)
	}
	return err
}

// current reads the ledger. If the file is missing while there are receipts, it
// was removed: the live leases are found again.
func (l *Ledger) current(tx *change) (*state, error) {
	st, found, err := l.store.read()
	if err != nil || found {
		return &st, err
	}
	kept, dropped, err := l.recover(tx.me)
	if err != nil {
		return nil, err
	}
	for _, k := range kept {
		st.leases = append(st.leases, newRecord(k))
		tx.event("repaired", k, "the ledger was missing")
		tx.dirty = true
	}
	for _, d := range dropped {
		l.log.Warn("drop receipt", "file", d.File, "reason", d.Why)
	}
	return &st, nil
}

// commit writes what f changed. The receipts come first: a lease that the ledger
// names then has one unless its end was already decided, and a receipt that the
// ledger doesn't name was never granted to anybody.
func (tx *change) commit() error {
	if !tx.dirty {
		return nil
	}
	l := tx.ledger
	s := l.store
	s.sync = l.durable()
	for _, p := range tx.put {
		if err := s.writeReceipt(p); err != nil {
			return err
		}
		l.step("receipt written")
	}
	for _, id := range tx.drop {
		if err := s.removeReceipt(id); err != nil {
			return err
		}
		l.step("receipt removed")
	}
	if err := s.write(*tx.state); err != nil {
		return err
	}
	l.step("ledger written")
	return nil
}

// fill reads all of the leases: what judges them needs that.
func (tx *change) fill() error {
	if err := tx.ledger.store.codec.fill(tx.state); err != nil {
		return fileError(tx.ledger.store.ledger(), err)
	}
	return nil
}

// lease reads all of the lease at i.
func (tx *change) lease(i int) (Lease, error) {
	one := state{leases: tx.leases[i : i+1]}
	if err := tx.ledger.store.codec.fill(&one); err != nil {
		return Lease{}, fileError(tx.ledger.store.ledger(), err)
	}
	return *tx.leases[i].v, nil
}

// reap frees what the dead hold, records the containers that reserved leases
// have become, and takes the dead out of the line.
func (tx *change) reap() {
	w := tx.ledger.world
	tx.reaped = tx.uptime
	for i := len(tx.leases) - 1; i >= 0; i-- {
		switch v := judge(w, tx.me, *tx.leases[i].v); {
		case !v.live:
			tx.remove(i, "reaped", v.why)
		case v.bound != nil:
			tx.replace(i, *v.bound)
		}
	}
	waiting := len(tx.line)
	tx.line = slices.DeleteFunc(tx.line, func(b block[waiter]) bool { return !stands(w, tx.me, b.v) })
	tx.dirty = tx.dirty || len(tx.line) < waiting
}

// remove ends the lease at i, which must have been read.
func (tx *change) remove(i int, event, why string) {
	l := *tx.leases[i].v
	tx.leases = slices.Delete(tx.leases, i, i+1)
	tx.drop = append(tx.drop, l.ID)
	tx.dirty = true
	tx.event(event, l, why)
}

// replace records that a lease is bound.
func (tx *change) replace(i int, l Lease) {
	tx.leases[i] = newRecord(l)
	tx.put = append(tx.put, l)
	tx.dirty = true
	tx.event("bound", l, "")
}

// find returns the place of a lease, -1 if there is none of that ID.
func (tx *change) find(id string) int {
	return slices.IndexFunc(tx.leases, func(r record) bool { return r.id == id })
}

// leave takes a ticket out of the line; one that isn't there is no matter.
func (tx *change) leave(id string) {
	if i := ticketAt(tx.line, id); i >= 0 {
		tx.line, tx.dirty = slices.Delete(tx.line, i, i+1), true
	}
}

// isTidy says that nothing but a free device is needed: nobody waits, the dead
// were looked for a moment ago, and no lease mentions the owner's container.
func (tx *change) isTidy(o Owner) bool {
	age := tx.uptime - tx.reaped
	if len(tx.line) > 0 || age < 0 || age >= reapInterval {
		return false
	}
	name, err := json.Marshal(o.Container)
	return err == nil && !slices.ContainsFunc(tx.leases, func(r record) bool {
		return o.Container != "" && (r.raw == nil || bytes.Contains(r.raw, name))
	})
}

// refuseSecond is ErrHolds if the owner's container has a lease.
func (tx *change) refuseSecond(o Owner) error {
	for _, l := range tx.leases {
		if o.Container != "" && sameContainer(l.v.Owner, o.Container, o.RuntimeRoot) {
			return fmt.Errorf("acquire for container %s: %w: %s", o.Container, ErrHolds, l.id)
		}
	}
	return nil
}

func (tx *change) grant(a Ask, devices []gpu.Device, ticket *waiter) Lease {
	l := Lease{
		ID: tx.newID(), State: Reserved, Devices: devices, Request: a.Request.String(),
		Owner: a.Owner, Since: tx.now.Round(0), Ticks: uint64(tx.uptime / tick),
	}
	l.Owner.OwnCgroup = inhabited(tx.ledger.world, tx.me, l.Owner, l.Owner.Cgroup) == no
	tx.leases = append(tx.leases, newRecord(l))
	tx.put = append(tx.put, l)
	tx.dirty = true
	waited := time.Duration(0)
	if ticket != nil {
		waited = tx.now.Sub(ticket.Since)
	}
	tx.event("acquired", l, "").Waited = waited.Seconds()
	return l
}

// idLength is the length of a lease's or a waiter's id, in hex digits.
const idLength = 12

func (tx *change) newID() string {
	for {
		if id := randomID(); tx.find(id) < 0 {
			return id
		}
	}
}

// randomID is from the runtime's own generator, which the kernel has seeded: an id
// is a name, and whoever knows it may not do more than others.
func randomID() string { return fmt.Sprintf("%0*x", idLength, rand.Uint64()>>(64-4*idLength)) }
