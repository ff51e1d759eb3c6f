package gpu

import (
	"context"
	"errors"
)

// ErrNoDriver means that the node has no accelerator driver, or its library wasn't found.
// [NoDriverError] says what was looked for.
var ErrNoDriver = errors.New("no accelerator driver")

// NoDriverError is [ErrNoDriver] with the details.
type NoDriverError struct {
	// Library that was to be loaded, a path or a name for the dynamic loader.
	Library string
	// Reason in the words of the loader or of the library.
	Reason string
}

func (e *NoDriverError) Error() string { return "load " + e.Library + ": " + e.Reason }

// Is makes a NoDriverError an [ErrNoDriver].
func (e *NoDriverError) Is(target error) bool { return target == ErrNoDriver }

// Source reads accelerators from a driver's library. The NVIDIA one is in
// package gpu/nvml (cgo); package gpu/probe runs it in a process of its own.
// What a Source knows becomes an [Inventory] in package gpu/discover.
type Source interface {
	// Read reports all that the library knows. A GPU that can't be read is
	// reported with Lost set; an error means that nothing could be learned at
	// all. Read returns soon after ctx ends even when a library call hangs.
	Read(ctx context.Context) (Report, error)
}

// Report is what a [Source] knows of a node; the host's own trees add the rest.
type Report struct {
	Driver Driver `json:"driver"`
	// GPUs in the library's order; NUMA, CPUs and the slices' capability minors
	// are unset. PCI is "" for a GPU of which the library gave nothing but a count.
	GPUs []GPU `json:"gpus"`
	// NVLinks has one entry for each pair joined by NVLink, A < B; PCIe is unset.
	NVLinks []Link `json:"nvlinks,omitempty"`
}
