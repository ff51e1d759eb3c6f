// Package ledger is the one crash-safe record of which owner holds which device.
//
// The ledger is a file, not a daemon: ledger.json in a directory that a reboot empties
// (/run/berth). Each change is made under flock and replaces the
// file by a rename. A lease ends when it is released, or when its holder is dead by the
// rules of judge (liveness.go); the next acquire finds the dead. Requests that have to
// wait are in a queue in the same file (queue.go). Changes are recorded in an event log
// (events.go).
//
// A process can be killed at any point: the ledger stays whole, and a device has at most
// one live holder. The files are written in this order:
//
//	acquire  receipt written · ledger renamed · Acquire returns
//	release  receipt removed · ledger renamed
//
// An acquire that is killed before the rename has no effect, and a later acquire removes
// its receipt. After the rename the lease exists, and a later acquire frees it because its
// holder is dead. A release that is killed before the rename must be called again.
//
// The ledger enforces nothing. Package isolation and its neighbours keep tasks from opening
// devices that they do not hold.
package ledger

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/dirwatch"
)

// Options of Open. The zero value is this machine.
type Options struct {
	// Dir is where the ledger lives; "" means /run/berth.
	Dir string
	// Events is the directory of the event log; "" means /var/lib/berth.
	Events string
	// Proc and Cgroup are where procfs and the cgroup file system are mounted; ""
	// means /proc and /sys/fs/cgroup.
	Proc, Cgroup string
	// LockLimit is the time limit for taking the lock where the context doesn't end earlier; 0
	// means a minute. The lock is held for a millisecond, and for seconds where a hundred processes
	// compete for each CPU. A holder that is stopped or frozen is waited for no longer than
	// [lock.Acquire] does.
	LockLimit time.Duration
	// Log gets warnings about errors that fail no call, such as an event log that can't be written.
	// nil discards them.
	Log *slog.Logger
	// Granted, if set, is called under the lock with the leases whose devices may be opened, before
	// an end of a lease is written (without that lease) and after a new lease was written (with
	// it). If it fails, so does the call.
	Granted func([]Lease) error
	// Inspect, if set, is called without the lock before leases are removed, once the holders of those that are reaped
	// are dead. It searches for processes that still have one of their devices open. If it fails, so does the call, and
	// the leases stay. Several goroutines may call it at once.
	Inspect func(context.Context, []Lease) error
	// Step, if set, is called between the steps of a transaction. Tests use it to kill the process
	// at each point.
	Step func(name string)
}

// Ledger is a handle on the record of one node. It holds no lock and no open
// file between calls; any number of processes and goroutines may use it at once.
type Ledger struct {
	store     store
	events    eventLog
	world     system
	proc      string
	limit     time.Duration
	poll      time.Duration
	exitGrace time.Duration
	log       *slog.Logger
	granted   func([]Lease) error
	inspect   func(context.Context, []Lease) error
	step      func(string)
	changes   *dirwatch.Shared // of the ledger's directory
	// durable says whether the ledger has to be flushed to a disk. It need not
	// survive a power failure, but it must not come back damaged.
	durable func() bool
}

// Open returns a handle; it touches nothing but the file system's type.
func Open(o Options) *Ledger {
	files := &codec{}
	l := &Ledger{
		store:     store{dir: cmp.Or(o.Dir, "/run/berth"), codec: files},
		events:    eventLog{path: filepath.Join(cmp.Or(o.Events, "/var/lib/berth"), "events.log"), json: &files.json, max: 4 << 20, keep: 4},
		proc:      cmp.Or(o.Proc, "/proc"),
		limit:     cmp.Or(o.LockLimit, time.Minute),
		poll:      pollInterval,
		exitGrace: exitGrace,
		log:       cmp.Or(o.Log, slog.New(slog.DiscardHandler)),
		granted:   o.Granted,
		inspect:   o.Inspect,
		step:      o.Step,
	}
	l.changes = dirwatch.NewShared(l.store.dir, unix.IN_MOVED_TO) // the ledger is replaced by rename
	l.world = openMachine(l.proc, o.Cgroup)
	l.durable = sync.OnceValue(func() bool { return !atomicfile.Volatile(l.store.dir) })
	if l.step == nil {
		l.step = func(string) {}
	}
	return l
}
