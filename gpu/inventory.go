// Package gpu is the data model of a node's accelerators: the [Inventory] (an immutable
// picture of one node's GPUs, MIG slices, their links and the NICs beside them), and the
// [Device] that is leased.
//
// The language in which a task asks for devices is in package gpu/request, the choice
// of devices in package gpu/match. Package gpu/discover reads a node: it asks a
// [Source] (package gpu/nvml) and the kernel's own trees (packages gpu/driver and
// gpu/sysfs). Container starts read the snapshot of package gpu/snapshot instead.
//
// Nothing here takes or holds a device: that is package isolation/ledger. Values of this
// package are plain data and safe to copy and to compare; nothing in them may be changed
// after they were built.
package gpu

import "slices"

// Inventory is what one node has at one moment: the result of discovery, and
// the content of the snapshot that a container's start reads.
type Inventory struct {
	// Hostname is for display only.
	Hostname string `json:"hostname,omitempty"`
	Driver   Driver `json:"driver"`
	// GPUs in NVML's order, lost ones included. A GPU's Index is its place here.
	GPUs []GPU `json:"gpus"`
	// Links holds one entry for each unordered pair of GPUs, with A < B.
	Links []Link `json:"links,omitempty"`
	NICs  []NIC  `json:"nics,omitempty"`
	// NVSwitches counts the NVSwitch devices of the node.
	NVSwitches int        `json:"nvswitches,omitempty"`
	NUMA       []NUMANode `json:"numa,omitempty"`
	// CDI are other vendors' devices that can be requested now. Discovery leaves them nil; they are
	// looked up for a request that names one.
	CDI []Device `json:"-"`
	// FeatureNodes are the nodes that features stand for, sorted by feature, major and minor.
	FeatureNodes []FeatureNode `json:"extras,omitempty"`
	// ExclusiveNICs is the admin's policy that a NIC has one holder at a time. Discovery doesn't
	// set it; it is filled in for a match.
	ExclusiveNICs bool `json:"-"`
	// Occupied are devices that can't be leased now because processes without a lease use them.
	// They are filled in for a match.
	Occupied []Occupied `json:"-"`
}

// Driver is the accelerator driver of a node.
type Driver struct {
	// Version of the kernel module, as in /sys/module/nvidia/version: "550.163.01".
	Version string `json:"version"`
	// CUDA is the newest CUDA version that the driver supports, as "12.4".
	CUDA string `json:"cuda,omitempty"`
}

// NUMANode is one memory node.
type NUMANode struct {
	ID   int    `json:"id"`
	CPUs string `json:"cpus"` // list format
}

// Devices lists all that could be leased if nothing were taken, in index order:
// healthy GPUs, and the slices of those in MIG mode. A GPU in MIG mode is listed
// before its slices; only a request that names it can match it.
func (inv Inventory) Devices() []Device {
	var all []Device
	for _, g := range inv.GPUs {
		if g.Lost != "" {
			continue
		}
		all = append(all, g.Device())
		for _, s := range g.Slices {
			all = append(all, g.SliceDevice(s))
		}
	}
	return all
}

// Lookup finds a device by its UUID. The slice is nil for a whole GPU; ok is
// false if the node doesn't have the device (any more).
func (inv Inventory) Lookup(uuid string) (g *GPU, s *Slice, ok bool) {
	for i := range inv.GPUs {
		g = &inv.GPUs[i]
		if g.UUID == uuid {
			return g, nil, true
		}
		if k := slices.IndexFunc(g.Slices, func(s Slice) bool { return s.UUID == uuid }); k >= 0 {
			return g, &g.Slices[k], true
		}
	}
	return nil, nil, false
}

// Link is how two GPUs of a node reach each other. A and B are indexes into GPUs.
type Link struct {
	A int `json:"a"`
	B int `json:"b"`
	// NVLinks counts active NVLinks between the pair; behind an NVSwitch, those
	// that each of the two has to the switch.
	NVLinks int  `json:"nvlinks,omitempty"`
	PCIe    Path `json:"pcie"`
}

// Path is how far apart two PCI devices are, in the words of nvidia-smi topo -m.
type Path string

// The paths, nearest first.
const (
	PathPIX  Path = "PIX"  // at most one PCIe bridge
	PathPXB  Path = "PXB"  // several bridges, no host bridge
	PathPHB  Path = "PHB"  // one host bridge
	PathNODE Path = "NODE" // several host bridges of one NUMA node
	PathSYS  Path = "SYS"  // across NUMA nodes
)

// Link returns how the GPUs with the indexes a and b reach each other, with A
// and B as asked. Of a pair that discovery knew nothing about, PCIe is "".
func (inv Inventory) Link(a, b int) Link {
	for _, l := range inv.Links {
		if l.A == min(a, b) && l.B == max(a, b) {
			l.A, l.B = a, b
			return l
		}
	}
	return Link{A: a, B: b}
}
