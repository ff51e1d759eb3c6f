package doctor

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/sysfs"
	"github.com/berth-gpu/berth/internal/smallfile"
)

func (e *examination) checkRDMAPorts(r *report) error {
	nics, err := sysfs.NICs(e.host)
	if err == nil {
		decideRDMAPorts(r, nics)
	}
	return err
}

// decideRDMAPorts reports adapters without a device node, and ports with a link that no
// subnet manager has configured.
func decideRDMAPorts(r *report, nics []sysfs.NIC) {
	if len(nics) == 0 {
		return
	}
	active := 0
	for _, n := range nics {
		if n.Uverbs == "" {
			r.warn("modprobe ib_uverbs && "+r.command("discover"), "%s has no uverbs node: no container can use it", n.Name)
		}
		for _, p := range n.Ports {
			switch {
			case p.State == "ACTIVE":
				active++
			case p.State == "INIT" && p.LinkLayer == "InfiniBand":
				r.warn("start a subnet manager (systemctl start opensm, or one in a switch)", "port %d of %s has a link and no address: no subnet manager has configured it", p.Number, n.Name)
			}
		}
	}
	r.okUnlessReported("%s, %s active", output.FormatCount(len(nics), "adapter"), output.FormatCount(active, "port"))
}

// rocePort is an active port of an Ethernet adapter.
type rocePort struct {
	nic  string
	port gpu.Port
	// netdev is the network interface, "" if there is none.
	netdev string
	// mtu is the interface's, 0 if it is in another network namespace.
	mtu int
}

func (e *examination) readRoCE() (ports []rocePort, err error) {
	nics, err := sysfs.NICs(e.host)
	for _, n := range nics {
		for _, p := range n.Ports {
			if p.LinkLayer != "Ethernet" || p.State != "ACTIVE" {
				continue
			}
			port := rocePort{nic: n.Name, port: p}
			if len(n.Netdevs) > 0 {
				port.netdev = n.Netdevs[0]
				mtu, err := smallfile.Int(e.host.SysPath("class/infiniband", n.Name, "device/net", port.netdev, "mtu"))
				if err == nil {
					port.mtu = mtu
				}
			}
			ports = append(ports, port)
		}
	}
	return ports, err
}

// decideGIDs reports ports of RoCE that machines of other subnets can't reach, because they
// have only a link-local address.
func decideGIDs(r *report, ports []rocePort) {
	routable := func(g gpu.GID) bool { return g.Type == "RoCE v2" && !strings.HasPrefix(g.GID, "fe80:") }
	for _, p := range ports {
		if !slices.ContainsFunc(p.port.GIDs, routable) {
			r.warn("ip address add ADDRESS/BITS dev "+cmp.Or(p.netdev, "ITS INTERFACE"), "port %d of %s is RoCE and has no GID of RoCE v2 that another machine reaches", p.port.Number, p.nic)
		}
	}
	if len(ports) > 0 {
		r.okUnlessReported("%s of RoCE with GIDs that can be reached", output.FormatCount(len(ports), "port"))
	}
}

// decideMTU reports ports of RoCE whose interface is too narrow for RDMA's largest packets,
// 4096 bytes and headers.
func decideMTU(r *report, ports []rocePort) {
	const enough = 4200
	ports = slices.DeleteFunc(ports, func(p rocePort) bool { return p.mtu == 0 })
	for _, p := range ports {
		if p.mtu < enough {
			r.warn("ip link set dev "+p.netdev+" mtu 9000, if the switches carry it", "port %d of %s is RoCE at an MTU of %d (%s): RDMA's packets become as small", p.port.Number, p.nic, p.mtu, p.netdev)
		}
	}
	if len(ports) > 0 {
		r.okUnlessReported("%s of RoCE with large packets", output.FormatCount(len(ports), "port"))
	}
}

func (e *examination) checkRDMANamespaces(r *report) error {
	nics, err := sysfs.NICs(e.host)
	if err != nil || len(nics) == 0 {
		return err
	}
	mode, err := smallfile.String(filepath.Join(e.host.SysPath("module/ib_core/parameters"), "netns_mode"))
	if err == nil { // otherwise the kernel has no namespaces of RDMA
		decideRDMANamespaces(r, mode == "Y" || mode == "1", e.Config.Policy.NICs)
	}
	return nil
}

// decideRDMANamespaces reports a policy that doesn't fit the kernel's mode. shared means
// that all network namespaces have all adapters; nics is policy.nics.
func decideRDMANamespaces(r *report, shared bool, nics string) {
	switch {
	case shared:
		r.ok("RDMA is shared among network namespaces: device rules and the view of /sys divide it")
	case nics != "exclusive":
		r.warn(`set policy.nics = "exclusive" in `+r.configPath+", or rdma system set netns shared before anything uses RDMA",
			"an adapter is in one network namespace at a time (rdma system), and policy leases it to several: the second finds it gone")
	default:
		r.ok("adapters move into the network namespaces of their holders (rdma system)")
	}
}
