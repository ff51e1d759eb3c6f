package ledger

import (
	"errors"
	"fmt"
	"time"

	"github.com/berth-gpu/berth/gpu"
)

// Lease says who holds which devices, since when, and what proves that the
// holder lives. The zero Lease holds nothing.
type Lease struct {
	// ID is twelve random hex digits, new for every life of a container: a late
	// release of an earlier life can't end a later one.
	ID      string       `json:"id"`
	State   State        `json:"state"`
	Devices []gpu.Device `json:"devices"`
	// Request in the canonical words of gpu.Request.String.
	Request string    `json:"request"`
	Owner   Owner     `json:"owner"`
	Since   time.Time `json:"since"`
}

// State of a lease. A lease that was given back isn't in the ledger.
type State string

const (
	// Reserved: the devices are taken and the holder's container doesn't exist
	// yet, as far as the ledger knows. Owner.Process is who is making it.
	Reserved State = "reserved"
	// Bound: the container exists. Owner.Process is its init, Owner.Cgroup its cgroup.
	Bound State = "bound"
)

// Owner is the holder of a lease.
type Owner struct {
	// Door the request came through: "docker", "podman", "containerd", "runtime",
	// "run", "alloc", "api".
	Door string `json:"door"`
	// Container is the id that the engine or launcher gave, Name what people call it.
	Container string `json:"container,omitempty"`
	Name      string `json:"name,omitempty"`
	Bundle    string `json:"bundle,omitempty"`
	UID       int    `json:"uid"`
	// Command is for display only.
	Command string  `json:"command,omitempty"`
	Process Process `json:"process"`
	BootID  string  `json:"boot_id"`
	// Cgroup is the path below the hierarchy's mount point as the host sees it,
	// e.g. "/berth/4f0c…" or "/system.slice/docker-….scope"; on cgroup v1 in the
	// devices hierarchy. "" if not known (yet).
	Cgroup string `json:"cgroup,omitempty"`
	// PIDFile, RuntimeRoot and Runtime are where the container's init can be
	// found once the runtime has made it: the --pid-file, the runtime's state
	// directory (--root) and the real runtime's name ("runc", "crun").
	PIDFile     string `json:"pid_file,omitempty"`
	RuntimeRoot string `json:"runtime_root,omitempty"`
	Runtime     string `json:"runtime,omitempty"`
}

// Process names one process for good: a pid alone can be reused.
type Process struct {
	PID int `json:"pid"`
	// Start is field 22 of /proc/PID/stat: clock ticks since boot. exec keeps it.
	Start uint64 `json:"start"`
	// Namespace is the inode of the pid namespace in which PID is meant.
	Namespace uint64 `json:"pidns"`
}

// Errors that callers branch on. BusyError is ErrBusy with the details.
var (
	// ErrBusy: the node has the devices, others hold them.
	ErrBusy = gpu.ErrBusy
	// ErrCorrupt: the ledger can't be trusted; berth repair rebuilds it.
	ErrCorrupt = errors.New("ledger is corrupt")
	// ErrFuture: the ledger was written by a newer berth.
	ErrFuture = errors.New("ledger was written by a newer version of berth")
	// ErrOwnership: the ledger or its directory could be written by strangers.
	ErrOwnership = errors.New("ledger could have been written by others")
	// ErrNotFound: no such lease.
	ErrNotFound = errors.New("no such lease")
)

// BusyError says who is in the way. It is gpu.ErrBusy for errors.Is.
type BusyError struct {
	Request string
	Wanted  int // how many devices were asked for
	Free    int // how many of the matching ones are free (and not promised to the line)
	Total   int // how many the node has
	// Holders of matching devices, oldest first.
	Holders []Lease
	// Ahead counts the waiting requests before this one that compete for the same devices.
	Ahead int
}

func (e *BusyError) Is(target error) bool { return target == gpu.ErrBusy }

// Error is one line: what was asked, what is free, who holds the rest since when.
func (e *BusyError) Error() string {
	return fmt.Sprintf("%s: %d asked, %d of %d free", e.Request, e.Wanted, e.Free, e.Total)
}
