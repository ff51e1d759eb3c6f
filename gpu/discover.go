package gpu

import "context"

// Source reads accelerators from a driver's library. The NVIDIA one is in
// package gpu/nvml (cgo).
type Source interface {
	// Read reports all that the library knows. A GPU that can't be read is
	// reported with Lost set; an error means that nothing could be learned at
	// all. Read returns soon after ctx ends even when a library call hangs.
	Read(ctx context.Context) (Report, error)
}

// Report is what a [Source] knows of a node; the host's own trees add the rest.
type Report struct {
	Driver     Driver `json:"driver"`
	GPUs       []GPU  `json:"gpus"` // NUMA and CPUs unset
	NVSwitches int    `json:"nvswitches,omitempty"`
	// NVLinks has one entry for each pair joined by NVLink; PCIe is unset.
	NVLinks []Link `json:"nvlinks,omitempty"`
}
