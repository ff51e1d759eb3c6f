// Package gpu says what a node has and what a task may ask of it.
//
// It holds the [Inventory] (an immutable picture of one node's accelerators,
// their links and the NICs beside them), the [Request] language, and the pure
// function that brings both together, [Inventory.Match]. Reading a node is the
// business of package gpu/discover, which asks a [Source] (package gpu/nvml) and
// the kernel's own trees (packages gpu/driver and gpu/sysfs); the snapshot that
// container starts read instead is in package gpu/snapshot.
//
// Nothing here takes or holds a device: that is package isolation/ledger.
// Values of this package are plain data and safe to copy and to compare;
// nothing in them may be changed after they were built.
package gpu

import "slices"

// Inventory is what one node has at one moment: the result of discovery, and
// the content of the snapshot that a container's start reads.
type Inventory struct {
	// Hostname is for people; nothing is decided by it.
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
	// CDI are the names of other vendors' devices that can be asked for now. They
	// aren't discovered with the rest, but filled in for a request that names one;
	// nil if that wasn't done.
	CDI []string `json:"-"`
	// Extras are the nodes that features stand for, sorted by feature, major and minor.
	Extras []Extra `json:"extras,omitempty"`
	// ExclusiveNICs is the admin's policy: who leases a NIC has it alone. It isn't
	// discovered, but filled in for a match.
	ExclusiveNICs bool `json:"-"`
}

// Driver is the accelerator driver of a node.
type Driver struct {
	// Version of the kernel module, as in /sys/module/nvidia/version: "550.163.01".
	Version string `json:"version"`
	// CUDA is the newest CUDA version that the driver supports, as "12.4".
	CUDA string `json:"cuda,omitempty"`
}

// GPU is one physical GPU.
type GPU struct {
	// UUID as NVML gives it: "GPU-" and a UUID. A lost GPU whose UUID was never
	// read has "LOST-" and its PCI address instead, so that it can be spoken of.
	UUID string `json:"uuid"`
	// Index is NVML's, for display and for requests by index; it can change at a reboot.
	Index int `json:"index"`
	// Minor is N of /dev/nvidiaN, which isn't always Index. -1 if unknown.
	Minor int `json:"minor"`
	// PCI is the address in sysfs form, lower case: "0000:1b:00.0".
	PCI          string `json:"pci"`
	Model        string `json:"model,omitempty"`        // "NVIDIA H100 80GB HBM3"
	Architecture string `json:"architecture,omitempty"` // "hopper"
	// ComputeCapability is "major.minor": "9.0".
	ComputeCapability string `json:"compute_capability,omitempty"`
	// Memory is the total device memory in bytes.
	Memory uint64 `json:"memory,omitempty"`
	// MIG says that MIG mode is on; the GPU is then leased in Slices.
	MIG    bool    `json:"mig,omitempty"`
	Slices []Slice `json:"slices,omitempty"`
	// DRI are its graphics nodes, sorted by minor: none where nvidia-drm isn't loaded.
	DRI []DRINode `json:"dri,omitempty"`
	// NUMA is the nearest node, -1 if unknown.
	NUMA int `json:"numa"`
	// CPUs near the GPU in the kernel's list format ("0-55,112-167"); "" if unknown.
	CPUs string `json:"cpus,omitempty"`
	// Lost says why the GPU can't be used, in NVML's words; "" for a healthy one.
	// A lost GPU is never matched.
	Lost string `json:"lost,omitempty"`
}

// Slice is one MIG device: a compute instance inside a GPU instance.
type Slice struct {
	UUID    string `json:"uuid"`    // "MIG-" and a UUID
	Index   int    `json:"index"`   // NVML's MIG device index in its GPU
	Profile string `json:"profile"` // "1g.10gb", "1c.3g.40gb", "1g.10gb+me"
	GI      int    `json:"gi"`      // GPU instance id
	CI      int    `json:"ci"`      // compute instance id, within the GPU instance
	// GIMinor and CIMinor are N of /dev/nvidia-caps/nvidia-capN for the two
	// capabilities that a process needs, from /proc/driver/nvidia-caps/mig-minors.
	GIMinor int    `json:"gi_minor"`
	CIMinor int    `json:"ci_minor"`
	Memory  uint64 `json:"memory,omitempty"` // bytes
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

// NIC is one RDMA device (HCA) of the node.
type NIC struct {
	Name string `json:"name"` // "mlx5_0"
	// GUID of the node as in sysfs, "b8ce:f603:00a1:d2f4"; "" if it has none, or one
	// that another NIC has too.
	GUID  string `json:"guid,omitempty"`
	PCI   string `json:"pci,omitempty"`
	NUMA  int    `json:"numa"` // -1 if unknown
	Ports []Port `json:"ports,omitempty"`
	// Uverbs is the node's name under /dev/infiniband: "uverbs0".
	Uverbs string `json:"uverbs,omitempty"`
	// Netdevs are the network interfaces of the same PCI function.
	Netdevs []string `json:"netdevs,omitempty"`
	// Near holds, for each GPU of Inventory.GPUs, the path between the two.
	Near []Path `json:"near,omitempty"`
	// Peers holds the same for each NIC of Inventory.NICs, and "" for itself.
	Peers []Path `json:"peers,omitempty"`
}

// Port is one port of a NIC.
type Port struct {
	Number    int    `json:"number"`
	LinkLayer string `json:"link_layer"`      // "InfiniBand" or "Ethernet"
	State     string `json:"state,omitempty"` // "ACTIVE", "DOWN", …
	Rate      string `json:"rate,omitempty"`  // "400 Gb/sec (4X NDR)"
	// GIDs that are set, by index, as of discovery: those of RoCE follow the addresses
	// of the network interface.
	GIDs []GID `json:"gids,omitempty"`
}

// GID is one address of a port.
type GID struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`              // "fe80:0000:0000:0000:bace:f6ff:fea1:d2f4"
	Type   string `json:"type,omitempty"`   // "IB/RoCE v1", "RoCE v2"
	Netdev string `json:"netdev,omitempty"` // the network interface of a RoCE GID
}

// NUMANode is one memory node.
type NUMANode struct {
	ID   int    `json:"id"`
	CPUs string `json:"cpus"` // list format
}

// Device is one thing that can be leased: a whole GPU, a MIG slice, another
// vendor's CDI device or a NIC. It is comparable, and it carries what is worth knowing of the device after it has
// gone from the inventory, for a lease outlives the hardware's changes.
type Device struct {
	UUID string `json:"uuid"`
	// Parent is the UUID of the GPU that a slice was cut from; "" for a GPU.
	Parent string `json:"parent,omitempty"`
	// Index is for display: "3", or "3:1" for the second slice of GPU 3; of a NIC its name.
	Index   string `json:"index"`
	Model   string `json:"model,omitempty"`
	Profile string `json:"profile,omitempty"` // of a slice
	// Shared says of a NIC that others may lease it at the same time.
	Shared bool `json:"shared,omitempty"`
}

// Conflicts says that a and b can't be leased to two holders: they are the same
// device, or one is a slice of the other. Two slices of one GPU don't conflict, nor
// does a NIC with itself if both share it.
func (d Device) Conflicts(e Device) bool {
	if d.Shared && e.Shared {
		return false
	}
	return d.UUID == e.UUID || d.UUID == e.Parent || d.Parent == e.UUID
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
