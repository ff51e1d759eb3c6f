// Package ledger is the one crash-safe record of who holds which device.
//
// It is a file and no daemon: ledger.json in a directory that a reboot empties
// (/run/berth), changed under flock by a rename, readable by everybody. A lease
// ends when it is released, or when its holder is dead by the rules of judge
// (liveness.go); the dead are found by whoever acquires next. Requests that have to
// wait stand in a queue in the same file (queue.go). What is done is told to a log
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
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/berth-gpu/berth/internal/atomicfile"
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
	world  system
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
	l.world = openMachine(l.proc, o.Cgroup)
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
