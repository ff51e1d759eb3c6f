package gpu

import (
	"slices"
	"strconv"
	"strings"
)

// GPU is one physical GPU.
type GPU struct {
	// UUID as NVML gives it: "GPU-" and a UUID. The UUID of a lost GPU may never have been read; it
	// then is "LOST-" and the PCI address.
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

// DRINode is one node of a GPU in the kernel's graphics interface, below /dev/dri.
// Its major is that of "drm" in /proc/devices.
type DRINode struct {
	Name  string `json:"name"` // "card1", "renderD129"
	Minor int    `json:"minor"`
}

// Device is one thing that can be leased: a whole GPU, a MIG slice, another vendor's CDI device or
// a NIC. It is comparable. It has all facts about the device that a lease needs after the device
// has disappeared from the inventory.
type Device struct {
	UUID string `json:"uuid"`
	// Parent is the UUID of the GPU that a slice was cut from; "" for a GPU.
	Parent string `json:"parent,omitempty"`
	// Index is for display: "3", or "3:1" for the second slice of GPU 3; of a NIC its name.
	Index   string `json:"index"`
	Model   string `json:"model,omitempty"`
	Profile string `json:"profile,omitempty"` // of a slice
	// Node is the name in /dev of the GPU, or of a slice's GPU: "nvidia3". Device rules let a
	// container open this node, whichever GPU has it. "" if unknown, as in leases of older versions.
	Node string `json:"node,omitempty"`
	// Shared is set for a NIC that several leases may hold at the same time.
	Shared bool `json:"shared,omitempty"`
	// Nodes are the device nodes of a CDI device that its holder has alone, and CommonNodes those
	// that all devices of its CDI spec bring, as [JoinNodes] writes them.
	Nodes       string `json:"nodes,omitempty"`
	CommonNodes string `json:"common_nodes,omitempty"`
}

// Conflicts reports whether a and b can't be leased to two holders: they are the same
// device, one is a slice of the other, or one has a node alone that the other brings too.
// Two slices of one GPU don't conflict, nor does a NIC with itself if both share it.
func (d Device) Conflicts(e Device) bool {
	if d.Shared && e.Shared {
		return false
	}
	if d.UUID == e.UUID || d.UUID == e.Parent || d.Parent == e.UUID {
		return true
	}
	return (d.Nodes != "" || e.Nodes != "") && (d.ownsNodeOf(e) || e.ownsNodeOf(d)) // few devices have nodes, and a call copies both
}

// ownsNodeOf reports whether e brings a node that only the holder of d may have.
func (d Device) ownsNodeOf(e Device) bool {
	if d.Nodes == "" {
		return false
	}
	brings := append(strings.Split(e.Nodes, ","), strings.Split(e.CommonNodes, ",")...)
	return slices.ContainsFunc(strings.Split(d.Nodes, ","), func(node string) bool { return slices.Contains(brings, node) })
}

// Device returns the whole GPU as something that can be leased.
func (g GPU) Device() Device {
	return Device{UUID: g.UUID, Index: strconv.Itoa(g.Index), Model: g.Model, Node: g.node()}
}

func (g GPU) node() string {
	if g.Minor < 0 {
		return ""
	}
	return "nvidia" + strconv.Itoa(g.Minor)
}

// SliceDevice returns a slice of the GPU as something that can be leased.
func (g GPU) SliceDevice(s Slice) Device {
	return Device{
		UUID: s.UUID, Parent: g.UUID, Profile: s.Profile, Model: g.Model, Node: g.node(),
		Index: strconv.Itoa(g.Index) + ":" + strconv.Itoa(s.Index),
	}
}

// HasNodeOf reports whether d and e are different GPUs, or slices of different GPUs, with the same
// device node: one has replaced the other. A container that may open one may open both.
func (d Device) HasNodeOf(e Device) bool {
	return d.Node != "" && d.Node == e.Node && d.gpuUUID() != e.gpuUUID()
}

func (d Device) gpuUUID() string {
	if d.Parent != "" {
		return d.Parent
	}
	return d.UUID
}

// IsCDI reports whether the device is another vendor's, known by its CDI name.
func (d Device) IsCDI() bool { return strings.Contains(d.UUID, "/") }

// CDIDevice returns another vendor's device, without its nodes, as something that can be leased.
func CDIDevice(name string) Device {
	kind, _, _ := strings.Cut(name, "=")
	return Device{UUID: name, Index: name, Model: kind}
}

// JoinNodes returns device numbers such as "c 240:7" as the text of [Device.Nodes]. Lists with the same numbers give the
// same text.
func JoinNodes(numbers []string) string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(numbers))), ",")
}
