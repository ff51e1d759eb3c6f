// Package ledger is the one crash-safe record of who holds which device.
//
// The ledger is a file, not a daemon: ledger.json in a directory that a reboot empties
// (/run/berth). Everybody can read it. Each change is made under flock and replaces the
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
