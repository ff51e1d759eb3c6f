package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/netdev"
)

// hostNetwork has the host's interfaces, addresses and routes, as the kernel reports them.
type hostNetwork struct {
	links     []netlink.Link
	addresses []netlink.Addr  // of IPv4
	routes    []netlink.Route // of IPv4, in all tables
}

func readHostNetwork(kernel *netlink.Handle) (n hostNetwork, err error) {
	if n.links, err = listLinks(kernel); err != nil {
		return n, err
	}
	n.addresses, err = netdev.RetryDump(func() ([]netlink.Addr, error) { return kernel.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return n, fmt.Errorf("list addresses: %w", err)
	}
	n.routes, err = netdev.RetryDump(func() ([]netlink.Route, error) {
		return kernel.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return n, fmt.Errorf("list routes: %w", err)
	}
	return n, nil
}

func listLinks(kernel *netlink.Handle) ([]netlink.Link, error) {
	all, err := netdev.RetryDump(kernel.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return all, nil
}

// isGangInterface reports whether an interface is the host's end of a gang's way out.
func isGangInterface(l netlink.Link) bool {
	return strings.HasPrefix(l.Attrs().Name, interfacePrefix) && l.Type() == "veth"
}

// prefixOf converts an address of IPv4 with its mask, bits of the host included.
func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits)
}

// wayOutBits is the shortest prefix of a route to a specific network. A route with a shorter prefix
// counts as a default route, such as the two /1 routes that VPNs set.
const wayOutBits = 8

// takenPrefixes returns the prefixes that can't be used for a gang: the host's own, and those to
// which the host has a route, be it one that drops packets.
func (n hostNetwork) takenPrefixes() (all []netip.Prefix) {
	for _, a := range n.addresses {
		all = append(all, prefixOf(a.IPNet))
		if a.Peer != nil {
			all = append(all, prefixOf(a.Peer))
		}
	}
	for _, r := range n.routes {
		if p := prefixOf(r.Dst); p.Bits() >= wayOutBits {
			all = append(all, p)
		}
	}
	return all
}

// gangSubnets are the subnets of the gangs that have a way out.
func (n hostNetwork) gangSubnets() (all []netip.Prefix) {
	for _, a := range n.addresses {
		if l := n.link(a.LinkIndex); l != nil && isGangInterface(l) {
			all = append(all, prefixOf(a.IPNet).Masked())
		}
	}
	return all
}

// link returns nil if there is no interface of this index.
func (n hostNetwork) link(index int) netlink.Link {
	for _, l := range n.links {
		if l.Attrs().Index == index {
			return l
		}
	}
	return nil
}

// outerInterfaces are the interfaces that lead out of the host: hardware and what is made
// of it, and those of default routes. Bridges of containers and of virtual machines aren't
// among them; a bridge with hardware in it is.
func (n hostNetwork) outerInterfaces() (names []string) {
	routed, isDefault := map[int]bool{}, map[int]bool{}
	for _, r := range n.routes {
		if r.Type != unix.RTN_UNICAST {
			continue
		}
		via := []int{r.LinkIndex}
		for _, hop := range r.MultiPath {
			via = append(via, hop.LinkIndex)
		}
		for _, index := range via {
			routed[index] = true
			isDefault[index] = isDefault[index] || prefixOf(r.Dst).Bits() < wayOutBits
		}
	}
	for _, l := range n.links {
		a := l.Attrs()
		if a.Flags&net.FlagLoopback == 0 && !isGangInterface(l) && routed[a.Index] && (isDefault[a.Index] || n.leadsOut(l)) {
			names = append(names, a.Name)
		}
	}
	return names
}

// leadsOutByIPv6Only reports whether the host has a default route of IPv6 and none of IPv4.
func (n hostNetwork) leadsOutByIPv6Only(kernel *netlink.Handle) (bool, error) {
	isDefault := func(r netlink.Route) bool { return r.Type == unix.RTN_UNICAST && prefixOf(r.Dst).Bits() < wayOutBits }
	if slices.ContainsFunc(n.routes, isDefault) {
		return false, nil
	}
	all, err := netdev.RetryDump(func() ([]netlink.Route, error) {
		return kernel.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return false, fmt.Errorf("list routes of IPv6: %w", err)
	}
	return slices.ContainsFunc(all, isDefault), nil
}

func (n hostNetwork) leadsOut(l netlink.Link) bool {
	switch l.Type() {
	case "veth", "tuntap", "dummy", "ifb":
		return false
	case "bridge":
		for _, port := range n.links {
			if port.Attrs().MasterIndex == l.Attrs().Index && port.Type() != "bridge" && n.leadsOut(port) {
				return true
			}
		}
		return false
	}
	return true
}

// outerMTU is the MTU of the way out, within the bounds of a veth.
func (n hostNetwork) outerMTU(kernel *netlink.Handle) (int, error) {
	const least, usual, most = 68, 1500, 65535
	routes, err := kernel.RouteGet(net.IPv4(1, 1, 1, 1)) // nothing is sent there
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) {
		return usual, nil // the host has no way out
	}
	if err != nil {
		return 0, fmt.Errorf("find the interface to the outside: %w", err)
	}
	for _, r := range routes {
		if r.MTU != 0 {
			return max(least, min(r.MTU, most)), nil
		}
		if l := n.link(r.LinkIndex); l != nil {
			return max(least, min(l.Attrs().MTU, most)), nil
		}
	}
	return usual, nil
}
