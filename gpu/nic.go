package gpu

import (
	"slices"
	"strings"
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

// IsNIC reports whether the device is a NIC.
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

// Active reports whether one of the NIC's ports can carry data.
func (n NIC) Active() bool {
	return slices.ContainsFunc(n.Ports, func(p Port) bool { return p.State == PortActive })
}

// PortActive is the kernel's word for a port that can carry data.
const PortActive = "ACTIVE"
