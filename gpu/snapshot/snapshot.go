// Package snapshot keeps the node's inventory in a file, so that a container's
// start never calls NVML, and tells when that file no longer fits the machine.
package snapshot

import (
	"errors"
	"time"

	"github.com/berth-gpu/berth/gpu"
)

// ErrStale: the machine has changed since the snapshot was taken, or there is none.
var ErrStale = errors.New("inventory snapshot is stale")

// Snapshot is the result of berth discover.
type Snapshot struct {
	Taken     time.Time     `json:"taken"`
	Key       Key           `json:"key"`
	Inventory gpu.Inventory `json:"inventory"`
	// DriverDir is the directory of driver files (package cdi), "" if there is none.
	DriverDir string `json:"driver_dir,omitempty"`
}

// Key is what a snapshot depends on, all of it cheap to read at every start.
type Key struct {
	BootID string `json:"boot_id"`
	// Driver is the version of the loaded kernel module.
	Driver string `json:"driver"`
	// Majors are the character majors of /proc/devices that belong to
	// accelerators, by name: "nvidia", "nvidia-uvm", "nvidia-caps", …
	Majors map[string]uint32 `json:"majors"`
	// GPUs are the names below /proc/driver/nvidia/gpus, sorted.
	GPUs []string `json:"gpus"`
	// MIG sums up the MIG capabilities below /proc/driver/nvidia/capabilities.
	MIG string `json:"mig,omitempty"`
}

// ReadKey reads the machine's present key.
func ReadKey(h gpu.Host) (Key, error) { return Key{}, errors.ErrUnsupported }

// Load reads the snapshot at path and compares it with the machine. An error
// that Is ErrStale says in words what changed.
func Load(path string, h gpu.Host) (Snapshot, error) { return Snapshot{}, errors.ErrUnsupported }

// Save writes the snapshot atomically.
func Save(path string, s Snapshot) error { return errors.ErrUnsupported }
