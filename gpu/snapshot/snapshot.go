// Package snapshot keeps the node's inventory in a file, so that a container's
// start never calls NVML, and tells when that file no longer fits the machine.
//
// The file has two lines of JSON: a header with the format's version, what the inventory depends on
// (the [Key]) and a checksum of the second line, which is the inventory. Only a file that root or
// the reading user has written is used. A file that is missing, damaged, of another version or
// written by another user counts as stale, and discovery writes a new one. There is no lock: writing
// is one rename.
//
// Changes that are not in the key are noticed only by the next discovery: a MIG instance that was
// replaced by one of another size under the same ids, and a second node of a feature that was there
// before.
package snapshot

import (
	"errors"
	"strings"
	"time"

	"github.com/berth-gpu/berth/gpu"
)

// ErrStale means that the machine has changed since the snapshot was taken, or
// that there is none. [StaleError] says what changed.
var ErrStale = errors.New("inventory snapshot is stale")

// StaleError is [ErrStale] with the reasons.
type StaleError struct {
	Path string
	// Changes in words, at least one: "driver 550.163.01 is now 560.35.03".
	Changes []string
}

// Error is one line.
func (e *StaleError) Error() string {
	return "inventory snapshot " + e.Path + " is stale: " + strings.Join(e.Changes, "; ")
}

// Is makes a StaleError an [ErrStale].
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// Snapshot is the result of berth discover.
type Snapshot struct {
	Taken     time.Time     `json:"taken"`
	Key       Key           `json:"-"` // in the header
	Inventory gpu.Inventory `json:"inventory"`
	// DriverDir is the directory of driver files (package cdi), "" if there is none.
	DriverDir string `json:"driver_dir,omitempty"`
	// OffBus are the PCI addresses of GPUs that couldn't be reached on the bus.
	OffBus []string `json:"off_bus,omitempty"`
	// KernelLog is the sequence of the newest record of a GPU's error in the kernel's log.
	KernelLog uint64 `json:"kernel_log,omitempty"`
	// OwnedFiles says why containers own the driver's files: the reason for which these
	// can't be mounted without their owner (package cdi/shared). "" if they are.
	OwnedFiles string `json:"owned_files,omitempty"`
}
