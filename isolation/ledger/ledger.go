// Package ledger is the one crash-safe record of who holds which device.
//
// It is a file and no daemon: ledger.json in a directory that a reboot empties
// (/run/berth), changed under flock by a rename, readable by everybody. A lease
// ends when it is released, or when its holder is dead by the rules of judge
// (life.go); the dead are found by whoever acquires next. Requests that have to
// wait stand in a line in the same file (line.go). What is done is told to a log
// of events (events.go).
//
// Whatever instant a process is killed at, the ledger is whole, and a device has
// at most one live holder:
//
//	acquire  receipt written · ledger renamed · caller told
//	release  receipt removed · ledger renamed
//
// An acquire that is killed before the rename didn't happen, and the next one
// sweeps its receipt; killed after it, the lease is there and its dead holder is
// reaped. A release that is killed before the rename has to be called again.
//
// The ledger doesn't enforce anything: that a task can't open what it doesn't
// hold is the business of package isolation and its neighbours.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/atomicfile"
)

// Ask is one request for devices.
type Ask struct {
	// Owner becomes the lease's. Process and BootID may be left out: they are then
	// the calling process's; of Process the pid alone is enough. Cgroup is where the
	// container is expected, "" if unknown.
	Owner   Owner
	Request request.Request
	// Inventory in which the request is matched.
	Inventory gpu.Inventory
	// Renew, if set, gives the inventory as it is now. A request that waits asks
	// it before each look, for a node can change meanwhile; its error ends the wait.
	Renew func(context.Context) (gpu.Inventory, error)
	// Wait is how long to stand in line: 0 fails at once with *BusyError, a
	// negative value waits for as long as ctx lives.
	Wait time.Duration
	// Waiting, if set, is called (from Acquire's goroutine) when the request has
	// to wait and whenever what it waits for changes.
	Waiting func(BusyError)
}

// Options of Open. The zero value is this machine.
type Options struct {
	// Dir is where the ledger lives; "" means /run/berth.
	Dir string
	// Events is the directory of the event log; "" means /var/lib/berth.
	Events string
	// Proc and Cgroup are where procfs and the cgroup file system are mounted; ""
	// means /proc and /sys/fs/cgroup.
	Proc, Cgroup string
	// LockLimit is how long to try for the lock where the context doesn't end
	// earlier; 0 means ten seconds. The lock is held for a millisecond, unless its
	// holder was stopped.
	LockLimit time.Duration
	// Log is told what goes wrong without making a call fail, such as an event
	// that can't be written. nil discards it.
	Log *slog.Logger
	// Step, if set, is called between any two steps between which being killed
	// leaves something different behind. It is for tests that do just that.
	Step func(name string)
}

// Ledger is a handle on the record of one node. It holds no lock and no open
// file between calls; any number of processes and goroutines may use it at once.
type Ledger struct {
	store  store
	events eventLog
	world  world
	proc   string
	limit  time.Duration
	poll   time.Duration
	dying  time.Duration
	log    *slog.Logger
	step   func(string)
	// durable says whether the ledger has to be flushed to a disk. It need not
	// survive a power failure, but it must not come back damaged.
	durable func() bool
}

// Open returns a handle; it touches nothing but the file system's type.
func Open(o Options) *Ledger {
	or := func(s, usual string) string {
		if s == "" {
			return usual
		}
		return s
	}
	files := &codec{}
	l := &Ledger{
		store:  store{dir: or(o.Dir, "/run/berth"), codec: files},
		events: eventLog{path: filepath.Join(or(o.Events, "/var/lib/berth"), "events.log"), json: &files.json, max: 4 << 20, keep: 4},
		proc:   or(o.Proc, "/proc"),
		limit:  o.LockLimit,
		poll:   pollInterval,
		dying:  dying,
		log:    o.Log,
		step:   o.Step,
	}
	l.world = newMachine(l.proc, o.Cgroup)
	l.durable = sync.OnceValue(func() bool { return !atomicfile.Volatile(l.store.dir) })
	if l.limit == 0 {
		l.limit = 10 * time.Second
	}
	if l.log == nil {
		l.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if l.step == nil {
		l.step = func(string) {}
	}
	return l
}

// Self describes the calling process.
func (l *Ledger) Self() (Process, error) {
	s, err := l.world.Self()
	return s.Process, err
}

// Acquire takes every device that the request asks for, or none. What the dead
// held is free for it. The error Is ErrBusy (a *BusyError) if the devices
// aren't free within the time to wait, ErrHolds if the owner's container has a
// lease already, ErrCorrupt, ErrFuture, ErrOwnership or ErrLocked if the ledger
// can't be used; otherwise it is match.Choose's, and waiting wouldn't have helped. If
// ctx ends a wait, the error Is both ctx's and ErrBusy. On any error nothing is held.
func (l *Ledger) Acquire(ctx context.Context, a Ask) (Lease, error) {
	if _, err := match.Candidates(a.Inventory, a.Request); err != nil {
		return Lease{}, err
	}
	me, err := l.world.Self()
	if err != nil {
		return Lease{}, err
	}
	if a.Owner.Process, err = l.complete(a.Owner.Process, me); err != nil {
		return Lease{}, fmt.Errorf("acquire for process %d: %w", a.Owner.Process.PID, err)
	}
	if a.Owner.BootID == "" {
		a.Owner.BootID = me.boot
	}
	a.Owner.CgroupNS, a.Owner.Maker, a.Owner.Cgroup = me.cgroupNS, me.cgroup, ownCgroup(a.Owner.Cgroup)
	if a.Owner, err = a.Owner.checked(); err != nil {
		return Lease{}, err
	}
	if a.Wait == 0 {
		return l.try(ctx, a, nil, false)
	}
	return l.stand(ctx, a)
}

// ownCgroup is the path, or "" for what can't be a container's own cgroup.
func ownCgroup(path string) string {
	if path == "" {
		return ""
	}
	if path = filepath.Clean(path); path == "/" {
		return ""
	}
	return path
}

// try takes the devices if it is the request's turn. If it isn't, a ticket that
// may stay is in the line afterwards, and one that may not isn't.
func (l *Ledger) try(ctx context.Context, a Ask, ticket *waiter, stay bool) (lease Lease, err error) {
	err = l.change(ctx, func(tx *change) error {
		if held, ok := taken(tx.leases); ok && tx.isTidy(a.Owner) {
			devices, err := turn(a.Inventory, held, nil, a.Request)
			if err == nil {
				lease = tx.grant(a, devices, ticket)
				return nil
			}
		}
		lease, err = tx.serve(a, ticket, stay)
		return err
	})
	if err != nil {
		return Lease{}, err
	}
	return lease, nil
}

// reapInterval is how old the last look at all holders may be for an acquire that
// finds what it needs without another one. It only matters in a rush: to look
// costs most of the time that an acquire takes.
const reapInterval = 100 * time.Millisecond

// serve is try with all that belongs to it: the dead are reaped first.
func (tx *change) serve(a Ask, ticket *waiter, stay bool) (Lease, error) {
	l := tx.ledger
	if err := tx.fill(); err != nil {
		return Lease{}, err
	}
	if err := l.store.sweep(tx.leases); err != nil {
		l.log.Warn("sweep receipts", "error", err)
	}
	tx.reap()
	if err := tx.refuseSecond(a.Owner); err != nil {
		return Lease{}, err
	}
	id := ""
	if ticket != nil {
		id = ticket.ID
	}
	held, _ := taken(tx.leases)
	devices, err := turn(a.Inventory, held, before(tx.line, id), a.Request)
	if err == nil {
		tx.leave(id)
		return tx.grant(a, devices, ticket), nil
	}
	if !stay {
		tx.leave(id)
	} else if ticketAt(tx.line, id) < 0 && errors.Is(err, ErrBusy) {
		tx.line, tx.dirty = enqueue(tx.line, *ticket), true
	}
	return Lease{}, withHolders(err, a, tx.leases)
}

// withHolders completes a *BusyError.
func withHolders(err error, a Ask, leases []record) error {
	var busy *BusyError
	if errors.As(err, &busy) {
		if candidates, cerr := match.Candidates(a.Inventory, a.Request); cerr == nil {
			busy.Holders = holders(a.Inventory, leases, candidates)
		}
	}
	return err
}

// complete fills in what is 0 in a process of this pid namespace; a pid of 0 is
// the calling process.
func (l *Ledger) complete(p Process, me self) (Process, error) {
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
		p.Start = s.start
	}
	return p, nil
}
