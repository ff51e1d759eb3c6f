package ledger

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/internal/lock"
)

// Errors that callers branch on.
var (
	// ErrBusy: the node has the devices, others hold them. [BusyError] has the details.
	ErrBusy = match.ErrBusy
	// ErrCorrupt: the ledger can't be trusted; [Ledger.Repair] rebuilds it.
	ErrCorrupt = errors.New("ledger is corrupt")
	// ErrFuture: the ledger was written by a newer berth.
	ErrFuture = errors.New("ledger was written by a newer version of berth")
	// ErrOwnership: the ledger or its directory could have been written by users other than root and
	// this one.
	ErrOwnership = errors.New("ledger could have been written by others")
	// ErrNotFound: no such lease.
	ErrNotFound = errors.New("no such lease")
	// ErrHolds: the container has a lease already; it can't get a second one.
	ErrHolds = errors.New("container has a lease already")
	// ErrLive: the lease stays, because its holder lives or isn't proven to be dead.
	ErrLive = errors.New("holder still lives")
	// ErrLocked: another process held the lock for too long. [LockError] has the details.
	ErrLocked = errors.New("ledger is locked")
)

// FileError names a file that can't be used. It Is ErrCorrupt, ErrFuture or ErrOwnership.
type FileError struct {
	Path string
	Kind error
	Why  string
}

func (e *FileError) Error() string { return e.Path + ": " + e.Kind.Error() + ": " + e.Why }

func (e *FileError) Unwrap() error { return e.Kind }

// LockError names the process that holds the lock. It is ErrLocked for errors.Is, and also the
// context's error if that ended the wait.
type LockError struct{ *lock.HeldError }

// Is reports whether target is ErrLocked.
func (e *LockError) Is(target error) bool { return target == ErrLocked }

func (e *LockError) Unwrap() error { return e.HeldError }

// BusyError has the holders of the requested devices. It is match.ErrBusy for errors.Is.
type BusyError struct {
	Request string
	Wanted  int // how many devices were asked for
	Free    int // how many of the matching ones are free (and not kept for the queue)
	Total   int // how many the node has
	// Holders of matching devices, oldest first.
	Holders []Lease
	// Occupied are the matching devices that processes without a lease use.
	Occupied []gpu.Occupied
	// Ahead counts the waiting requests before this one that compete for the same devices.
	Ahead int
	// Waited is how long the request waited in the queue.
	Waited time.Duration
}

// Is reports whether target is ErrBusy.
func (e *BusyError) Is(target error) bool { return target == match.ErrBusy }

// Limits on the holders, and on the devices of each, that an error names: a node can have hundreds.
const (
	listed = 4
	named  = 16
)

// Error is one line: the request, the number of free devices, and the holders of the others with
// the age of their leases.
func (e *BusyError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d asked, %d of %d free", e.Request, e.Wanted, e.Free, e.Total)
	for i, h := range e.Holders[:min(len(e.Holders), listed)] {
		if i == 0 {
			b.WriteString("; held: ")
		} else {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s by %s", formatIndexes(h.Devices), h.Owner.displayName())
		if !h.Since.IsZero() { // a user may not be shown it
			b.WriteString(" since " + h.Since.Format("2006-01-02 15:04"))
		}
	}
	if more := len(e.Holders) - listed; more > 0 {
		fmt.Fprintf(&b, " and %d more", more)
	}
	for _, o := range e.Occupied[:min(len(e.Occupied), listed)] {
		b.WriteString("; " + o.String())
	}
	if more := len(e.Occupied) - listed; more > 0 {
		fmt.Fprintf(&b, " and %d more", more)
	}
	if e.Ahead > 0 {
		fmt.Fprintf(&b, "; %d ahead in the queue", e.Ahead)
	}
	if e.Waited > 0 {
		fmt.Fprintf(&b, "; waited %v", e.Waited.Round(100*time.Millisecond))
	}
	return b.String()
}

func formatIndexes(ds []gpu.Device) string {
	var gpus, nics []string
	for _, d := range ds[:min(len(ds), named)] {
		if d.IsNIC() {
			nics = append(nics, d.Index)
		} else {
			gpus = append(gpus, d.Index)
		}
	}
	var text []string
	if gpus != nil {
		text = append(text, "GPU "+strings.Join(gpus, ","))
	}
	if nics != nil {
		text = append(text, "NIC "+strings.Join(nics, ","))
	}
	if more := len(ds) - named; more > 0 {
		text[len(text)-1] += fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(text, ", ")
}
