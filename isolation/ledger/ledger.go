// Package ledger is the one crash-safe record of who holds which device.
package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/berth-gpu/berth/gpu"
)

// Ask is one request for devices.
type Ask struct {
	Owner   Owner
	Request gpu.Request
	// Inventory in which the request is matched.
	Inventory gpu.Inventory
	// Wait is how long to stand in line: 0 fails at once with *BusyError, a
	// negative value waits for as long as ctx lives.
	Wait time.Duration
	// Waiting, if set, is called (from Acquire's goroutine) when the request has
	// to wait and whenever what it waits for changes.
	Waiting func(BusyError)
}

// Ledger is a handle on the record of one node. It holds no lock and no open
// file between calls; any number of processes and goroutines may use it at once.
type Ledger struct{}

// Options of Open. The zero value is this machine.
type Options struct {
	// Dir is where the ledger lives; "" means /run/berth.
	Dir string
	// Events is the directory of the event log; "" means /var/lib/berth.
	Events string
	// Proc and Cgroup are where procfs and the cgroup file system are mounted.
	Proc, Cgroup string
}

// Status is one lease as it is now.
type Status struct {
	Lease
	// Live is false when the holder is gone: the next acquire frees it.
	Live bool `json:"live"`
	// Note says what is remarkable, e.g. why it isn't live.
	Note string `json:"note,omitempty"`
}

// Waiter is one request in the line.
type Waiter struct {
	ID      string    `json:"id"`
	Request string    `json:"request"`
	Owner   Owner     `json:"owner"`
	Since   time.Time `json:"since"`
}

// View is what the ledger says at one moment.
type View struct {
	Leases []Status `json:"leases"`
	Line   []Waiter `json:"line"`
}

var errStub = errors.New("not written yet")

// Open returns a handle; it touches nothing.
func Open(o Options) *Ledger { return &Ledger{} }

// Acquire takes every device that the request asks for, or none.
func (l *Ledger) Acquire(ctx context.Context, a Ask) (Lease, error) { return Lease{}, errStub }

// Bind records the container's init and cgroup as the proof of life.
func (l *Ledger) Bind(ctx context.Context, id string, p Process, cgroup string) error { return errStub }

// Release gives a lease back. Releasing one that is gone is no error.
func (l *Ledger) Release(ctx context.Context, id string) error { return errStub }

// View reads; it never writes, and it takes no lock.
func (l *Ledger) View() (View, error) { return View{}, errStub }

// Repair replaces a ledger that can't be trusted by one rebuilt from what runs.
func (l *Ledger) Repair(ctx context.Context) (View, error) { return View{}, errStub }

// Self describes the calling process.
func (l *Ledger) Self() (Process, error) { return Process{}, errStub }
