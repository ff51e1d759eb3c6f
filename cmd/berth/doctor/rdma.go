package doctor

import (
	"path/filepath"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/sysfs"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// rdmaPorts: each adapter has a node, and each port that has a link can be used.
func (e *exam) rdmaPorts(r *result) error {
	nics, err := sysfs.NICs(e.host)
	if err != nil || len(nics) == 0 {
		return err
	}
	before, active := len(r.findings), 0
	for _, n := range nics {
		if n.Uverbs == "" {
			r.warn("modprobe ib_uverbs && "+e.berth("discover"), "%s has no uverbs node: no container can use it", n.Name)
		}
		for _, p := range n.Ports {
			switch {
			case p.State == "ACTIVE":
				active++
			case p.State == "INIT" && p.LinkLayer == "InfiniBand":
				r.warn("start a subnet manager (systemctl start opensm, or one in a switch)", "port %d of %s has a link and no address: no subnet manager has seen it", p.Number, n.Name)
			}
		}
	}
	r.fine(before, "%s, %s active", count(len(nics), "adapter"), count(active, "port"))
	return nil
}

// roce calls f with each active port of Ethernet, and the network interface of its NIC.
func (e *exam) roce(f func(n gpu.NIC, p gpu.Port, netdev string) error) error {
	nics, err := sysfs.NICs(e.host)
	if err != nil {
		return err
	}
	for _, n := range nics {
		for _, p := range n.Ports {
			if p.LinkLayer != "Ethernet" || p.State != "ACTIVE" {
				continue
			}
			netdev := ""
			if len(n.Netdevs) > 0 {
				netdev = n.Netdevs[0]
			}
			if err := f(n.NIC, p, netdev); err != nil {
				return err
			}
		}
	}
	return nil
}

// gids: RoCE's addresses follow those of the network interface, and the one that it makes
// of the link's own reaches no further than the next switch.
func (e *exam) gids(r *result) error {
	before, ports := len(r.findings), 0
	err := e.roce(func(n gpu.NIC, p gpu.Port, netdev string) error {
		ports++
		if !routable(p.GIDs) {
			r.warn("ip address add ADDRESS/BITS dev "+or(netdev, "ITS INTERFACE"), "port %d of %s is RoCE and has no GID of RoCE v2 that another machine reaches", p.Number, n.Name)
		}
		return nil
	})
	if ports > 0 {
		r.fine(before, "%s of RoCE with GIDs that can be reached", count(ports, "port"))
	}
	return err
}

// routable says that there is an address of RoCE v2 beside the link's own.
func routable(gids []gpu.GID) bool {
	for _, g := range gids {
		if g.Type == "RoCE v2" && !strings.HasPrefix(g.GID, "fe80:") {
			return true
		}
	}
	return false
}

// mtu: RDMA's largest packet of 4096 bytes needs a larger one of Ethernet.
func (e *exam) mtu(r *result) error {
	const enough = 4200
	before, ports := len(r.findings), 0
	err := e.roce(func(n gpu.NIC, p gpu.Port, netdev string) error {
		size, err := smallfile.Int(e.host.SysPath("class/infiniband", n.Name, "device/net", netdev, "mtu"))
		if err != nil || netdev == "" {
			return nil // in another network namespace, which is that one's matter
		}
		ports++
		if size < enough {
			r.warn("ip link set dev "+netdev+" mtu 9000, if the switches carry it", "port %d of %s is RoCE at an MTU of %d (%s): RDMA's packets become as small", p.Number, n.Name, size, netdev)
		}
		return nil
	})
	if ports > 0 {
		r.fine(before, "%s of RoCE with large packets", count(ports, "port"))
	}
	return err
}

// rdmaNamespaces: what the kernel does with adapters and network namespaces.
func (e *exam) rdmaNamespaces(r *result) error {
	nics, err := sysfs.NICs(e.host)
	if err != nil || len(nics) == 0 {
		return err
	}
	mode, err := smallfile.String(filepath.Join(e.host.SysPath("module/ib_core/parameters"), "netns_mode"))
	switch {
	case err != nil:
		return nil // a kernel without namespaces of RDMA
	case mode == "Y" || mode == "1":
		r.ok("RDMA is shared among network namespaces: device rules and what is shown of /sys divide it")
	case e.Config.Policy.NICs != "exclusive":
		r.warn(`set policy.nics = "exclusive" in `+e.ConfigPath+", or rdma system set netns shared before anything uses RDMA",
			"an adapter is in one network namespace at a time (rdma system), and policy leases it to several: the second finds it gone")
	default:
		r.ok("adapters move into the network namespaces of those who lease them (rdma system)")
	}
	return nil
}
