package gpu

import (
	"slices"
	"strings"
)

// hca begins the UUID of a NIC.
const hca = "HCA-"

// Device returns the NIC as something that can be leased, by one or, shared, by
// several at a time. It is known by the GUID of its node, or else by its PCI
// address, or, of a software device, by its name.
func (n NIC) Device(shared bool) Device {
	uuid := n.Name
	switch {
	case n.GUID != "":
		uuid = strings.ReplaceAll(n.GUID, ":", "-")
	case n.PCI != "":
		uuid = n.PCI
	}
	return Device{UUID: hca + uuid, Index: n.Name, Shared: shared}
}

// IsNIC says that the device is a NIC.
func (d Device) IsNIC() bool { return strings.HasPrefix(d.UUID, hca) }

// NIC finds the NIC that a device stands for; ok is false if the node doesn't have
// it (any more).
func (inv Inventory) NIC(d Device) (n NIC, ok bool) {
	i := slices.IndexFunc(inv.NICs, func(n NIC) bool { return n.Device(false).UUID == d.UUID })
	if i < 0 {
		return NIC{}, false
	}
	return inv.NICs[i], true
}

// Active says that one of the NIC's ports can carry data.
func (n NIC) Active() bool {
	return slices.ContainsFunc(n.Ports, func(p Port) bool { return p.State == portActive })
}

// portActive is the kernel's word for a port that can carry data.
const portActive = "ACTIVE"

// near returns how far the NIC is from the GPU at a place, as distance does.
func (n NIC) near(gpu int) int {
	if gpu >= len(n.Near) {
		return farthest
	}
	return distance(n.Near[gpu])
}

// path is how far the NIC is from the GPU at a place, in words.
func (n NIC) path(gpu int) Path {
	if gpu >= len(n.Near) || n.Near[gpu] == "" {
		return "unknown"
	}
	return n.Near[gpu]
}

// farthest is the distance of what no path is known to.
const farthest = 5

// distance counts paths from the nearest: 0 for PIX, 1 for PXB, …
func distance(p Path) int {
	paths := [farthest]Path{PathPIX, PathPXB, PathPHB, PathNODE, PathSYS}
	if i := slices.Index(paths[:], p); i >= 0 {
		return i
	}
	return farthest
}
