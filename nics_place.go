package berth

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// The networks that a job can have, as far as RDMA is concerned.
const (
	NetworkHost    = "host"    // the machine's
	NetworkPrivate = "private" // one of its own
	NetworkNone    = "none"    // one of its own, without a way out
	NetworkRDMA    = "rdma"    // one of its own, into which interfaces of the host may go
)

// RDMAMode is how the kernel divides RDMA devices among network namespaces. The mode is
// the machine's.
type RDMAMode string

// The modes.
const (
	RDMAShared    RDMAMode = "shared"    // each namespace may use all devices
	RDMAExclusive RDMAMode = "exclusive" // a device is in one namespace, as a network interface is
)

// NICMove is what has to go into a job's network namespace so that its RDMA adapters can
// be used there.
type NICMove struct {
	// Links are RDMA devices, where the kernel has each in one namespace alone.
	Links []string `json:"links,omitempty"`
	// Interfaces are network interfaces, which keep their names.
	Interfaces []string `json:"interfaces,omitempty"`
}

// IsZero says that nothing has to move.
func (m NICMove) IsZero() bool { return len(m.Links)+len(m.Interfaces) == 0 }

// PlaceNICs says what has to move so that leased adapters work in a network, or why they
// can't: adapters of RoCE have the addresses of their network interface, and none where
// that isn't. Devices that are no adapters count for nothing. It is pure.
func PlaceNICs(inv gpu.Inventory, leased []gpu.Device, mode RDMAMode, network string) (m NICMove, err error) {
	for _, d := range leased {
		nic, ok := inv.NIC(d)
		if !d.IsNIC() || network == NetworkHost {
			continue
		}
		if !ok {
			return NICMove{}, fmt.Errorf("device %s: the node doesn't have it any more", d.UUID)
		}
		if mode == RDMAExclusive {
			m.Links = append(m.Links, nic.Name)
		}
		if !isRoCE(nic) {
			continue
		}
		names := strings.Join(nic.Netdevs, ", ")
		switch {
		case names == "":
			return NICMove{}, fmt.Errorf("RDMA device %s is RoCE, and has no network interface whose addresses it could use", nic.Name)
		case network != NetworkRDMA:
			return NICMove{}, fmt.Errorf("RDMA device %s is RoCE and uses the addresses of %s, which isn't in a network of the job's own: it works with the host's network, or with network rdma", nic.Name, names)
		case d.Shared:
			return NICMove{}, fmt.Errorf("RDMA device %s is RoCE and uses the addresses of %s, which can't go into the job's network while policy.nics leases it to several: it works with the host's network", nic.Name, names)
		}
		m.Interfaces = append(m.Interfaces, nic.Netdevs...)
	}
	return m, nil
}

func isRoCE(n gpu.NIC) bool {
	return slices.ContainsFunc(n.Ports, func(p gpu.Port) bool { return p.LinkLayer == "Ethernet" })
}

// PlaceNICs is the function of this name, for a lease on this node. An interface that is
// the machine's way out goes nowhere.
func (n *Node) PlaceNICs(ctx context.Context, lease ledger.Lease, network string) (NICMove, error) {
	_, nics, _ := split(lease.Devices)
	if len(nics) == 0 || network == NetworkHost {
		return NICMove{}, nil
	}
	inv, err := n.Inventory(ctx)
	if err != nil {
		return NICMove{}, err
	}
	return n.placeNICs(inv, nics, network)
}

func (n *Node) placeNICs(inv gpu.Inventory, nics []gpu.Device, network string) (NICMove, error) {
	if network == NetworkHost {
		return NICMove{}, nil
	}
	m, err := PlaceNICs(inv, nics, n.rdmaMode(), network)
	if err != nil || len(m.Interfaces) == 0 {
		return m, err
	}
	routes, err := smallfile.String(n.config.GPUHost().ProcPath("net/route"))
	if err != nil {
		return NICMove{}, err
	}
	if name := findDefaultRoute(routes, m.Interfaces); name != "" {
		return NICMove{}, fmt.Errorf("network interface %s can't go into the job's network: it is the machine's way out", name)
	}
	return m, nil
}

// findDefaultRoute finds the first of the interfaces that has one. Source: proc_pid_net(5).
func findDefaultRoute(routes string, interfaces []string) string {
	for line := range strings.Lines(routes) {
		f := strings.Fields(line)
		if len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" && slices.Contains(interfaces, f[0]) {
			return f[0]
		}
	}
	return ""
}

// rdmaMode reads how the kernel divides RDMA devices among network namespaces. A kernel
// without RDMA, or before 5.3, doesn't say: there each namespace may use all devices.
func (n *Node) rdmaMode() RDMAMode {
	word, err := smallfile.String(n.config.GPUHost().SysPath("module/ib_core/parameters/netns_mode"))
	if err != nil || word == "Y" || word == "1" {
		return RDMAShared
	}
	return RDMAExclusive
}

// NetworkAnnotation tells, in the spec of a task whose network berth has made, which of
// the kinds it is. Nobody else's word for it counts.
const NetworkAnnotation = "dev.berth.network"

// networkOf says which kind of network a spec gives a container. Another's namespace that
// it joins is as private as one of its own; for one of berth's tasks the launcher has said.
func (n *Node) networkOf(spec *specs.Spec) string {
	if spec.Linux == nil {
		return NetworkHost
	}
	i := slices.IndexFunc(spec.Linux.Namespaces, func(s specs.LinuxNamespace) bool { return s.Type == specs.NetworkNamespace })
	if i < 0 {
		return NetworkHost
	}
	tasks := filepath.Join(n.config.Data, "tasks") + "/"
	if said := spec.Annotations[NetworkAnnotation]; said != "" && strings.HasPrefix(spec.Linux.Namespaces[i].Path, tasks) {
		return said
	}
	return NetworkPrivate
}
