package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/netlink"
)

// conn is a socket of rtnetlink. Source of all formats: rtnetlink(7).
type conn struct{ *netlink.Conn }

func dial() (*conn, error) {
	c, err := netlink.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &conn{c}, nil
}

// survey is what was found out about the host.
type survey struct {
	links     []link
	addresses []netip.Prefix // as they are, not masked
	owners    []int32        // whose they are
	routes    []route
}

type link struct {
	index, master int32
	name          string
	kind          string // "veth"; "" is hardware's
	mtu           int
	isLoopback    bool
	isRunning     bool // it is up, and has a carrier that the kernel knows of
}

// gang says that this is the host's end of a gang's way out.
func (l link) gang() bool { return strings.HasPrefix(l.name, prefix) && l.kind == "veth" }

type route struct {
	to  netip.Prefix
	via []int32 // the interfaces
	// isWay says that packets go there, and aren't the host's own or thrown away.
	isWay bool
}

func (c *conn) survey() (s survey, err error) {
	if s.links, err = c.links(); err != nil {
		return s, err
	}
	if s.addresses, s.owners, err = c.addresses(); err != nil {
		return s, err
	}
	s.routes, err = c.routes()
	return s, err
}

func (c *conn) links() (all []link, err error) {
	answers, err := c.List(unix.RTM_GETLINK, make([]byte, unix.SizeofIfInfomsg))
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, m := range answers {
		if m.Kind == unix.RTM_NEWLINK && len(m.Body) >= unix.SizeofIfInfomsg {
			all = append(all, readLink(m.Body))
		}
	}
	return all, nil
}

func readLink(body []byte) link {
	a := netlink.Attributes(body[unix.SizeofIfInfomsg:])
	info := netlink.Attributes(a[unix.IFLA_LINKINFO])
	flags := binary.NativeEndian.Uint32(body[8:])
	return link{
		index: int32(binary.NativeEndian.Uint32(body[4:])), master: int32(small(a[unix.IFLA_MASTER])),
		name: netlink.Text(a[unix.IFLA_IFNAME]), kind: netlink.Text(info[unix.IFLA_INFO_KIND]), mtu: int(small(a[unix.IFLA_MTU])),
		isLoopback: flags&unix.IFF_LOOPBACK != 0, isRunning: flags&unix.IFF_RUNNING != 0,
	}
}

// small reads a number of 32 bits; what isn't one is 0.
func small(value []byte) uint32 {
	if len(value) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(value)
}

func (c *conn) addresses() (all []netip.Prefix, owners []int32, err error) {
	request := make([]byte, unix.SizeofIfAddrmsg)
	request[0] = unix.AF_INET
	answers, err := c.List(unix.RTM_GETADDR, request)
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, m := range answers {
		if m.Kind != unix.RTM_NEWADDR || len(m.Body) < unix.SizeofIfAddrmsg || m.Body[0] != unix.AF_INET {
			continue
		}
		a := netlink.Attributes(m.Body[unix.SizeofIfAddrmsg:])
		for _, kind := range []uint16{unix.IFA_ADDRESS, unix.IFA_LOCAL} { // the peer's and its own, mostly the same
			if ip, ok := netip.AddrFromSlice(a[kind]); ok && ip.Is4() && int(m.Body[1]) <= ip.BitLen() {
				all = append(all, netip.PrefixFrom(ip, int(m.Body[1])))
				owners = append(owners, int32(binary.NativeEndian.Uint32(m.Body[4:])))
			}
		}
	}
	return all, owners, nil
}

func (c *conn) routes() (all []route, err error) {
	request := make([]byte, unix.SizeofRtMsg)
	request[0] = unix.AF_INET
	answers, err := c.List(unix.RTM_GETROUTE, request)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, m := range answers {
		if m.Kind != unix.RTM_NEWROUTE || len(m.Body) < unix.SizeofRtMsg || m.Body[0] != unix.AF_INET {
			continue
		}
		if r, ok := readRoute(m.Body); ok {
			all = append(all, r)
		}
	}
	return all, nil
}

// readRoute reads a struct rtmsg and what follows it.
func readRoute(body []byte) (r route, ok bool) {
	bits, kind := int(body[1]), body[7]
	a := netlink.Attributes(body[unix.SizeofRtMsg:])
	to, ok := netip.AddrFromSlice(a[unix.RTA_DST])
	if !ok {
		to, bits = netip.IPv4Unspecified(), 0
	}
	if !to.Is4() || bits > to.BitLen() {
		return r, false
	}
	r = route{to: netip.PrefixFrom(to, bits), isWay: kind == unix.RTN_UNICAST}
	if index := small(a[unix.RTA_OIF]); index != 0 {
		r.via = append(r.via, int32(index))
	}
	for hops := a[unix.RTA_MULTIPATH]; len(hops) >= unix.SizeofRtNexthop; {
		length := int(binary.NativeEndian.Uint16(hops))
		r.via = append(r.via, int32(binary.NativeEndian.Uint32(hops[4:])))
		if length < unix.SizeofRtNexthop || length > len(hops) {
			break
		}
		hops = hops[(length+unix.RTNH_ALIGNTO-1)&^(unix.RTNH_ALIGNTO-1):]
	}
	return r, true
}

// narrowest: a route that is wider says nothing of who is there; it is a way out, or
// half of one.
const narrowest = 8

// taken are the addresses that a gang can't have: what the host has, and what it knows
// a way to or has closed.
func (s survey) taken() (all []netip.Prefix) {
	all = append(all, s.addresses...)
	for _, r := range s.routes {
		if r.to.Bits() >= narrowest {
			all = append(all, r.to)
		}
	}
	return all
}

// gangs are the subnets of those that are there.
func (s survey) gangs() (all []netip.Prefix) {
	for i, a := range s.addresses {
		if l, ok := s.link(s.owners[i]); ok && l.gang() {
			all = append(all, a.Masked())
		}
	}
	return all
}

func (s survey) link(index int32) (link, bool) {
	for _, l := range s.links {
		if l.index == index {
			return l, true
		}
	}
	return link{}, false
}

// outer are the names of the interfaces that lead out of the host: hardware and what is
// made of it, and where the default route goes. Bridges of containers and of virtual
// machines aren't; a bridge with hardware in it is.
func (s survey) outer() (names []string) {
	ways, defaults := map[int32]bool{}, map[int32]bool{}
	for _, r := range s.routes {
		for _, index := range r.via {
			ways[index] = ways[index] || r.isWay
			defaults[index] = defaults[index] || r.isWay && r.to.Bits() < narrowest
		}
	}
	for _, l := range s.links {
		if !l.isLoopback && !l.gang() && ways[l.index] && (defaults[l.index] || s.leadsOut(l)) {
			names = append(names, l.name)
		}
	}
	return names
}

func (s survey) leadsOut(l link) bool {
	switch l.kind {
	case "veth", "tun", "dummy", "ifb":
		return false
	case "bridge":
		for _, port := range s.links {
			if port.master == l.index && port.kind != "bridge" && s.leadsOut(port) {
				return true
			}
		}
		return false
	}
	return true
}

// mtu is that of the way to the outside.
func (c *conn) mtu(s survey) (int, error) {
	const usual = 1500
	somewhere := netip.AddrFrom4([4]byte{1, 1, 1, 1}).As4() // nothing is sent there
	request := make([]byte, unix.SizeofRtMsg)
	request[0], request[1] = unix.AF_INET, 32
	answers, err := c.Ask(unix.RTM_GETROUTE, 0, netlink.Append(request, unix.RTA_DST, somewhere[:]))
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) {
		return usual, nil // there is none
	}
	if err != nil {
		return 0, fmt.Errorf("look for the way to the outside: %w", err)
	}
	for _, m := range answers {
		if m.Kind != unix.RTM_NEWROUTE || len(m.Body) < unix.SizeofRtMsg {
			continue
		}
		a := netlink.Attributes(m.Body[unix.SizeofRtMsg:])
		if mtu := small(netlink.Attributes(a[unix.RTA_METRICS])[unix.RTAX_MTU]); mtu != 0 {
			return clampMTU(int(mtu)), nil
		}
		if l, ok := s.link(int32(small(a[unix.RTA_OIF]))); ok {
			return clampMTU(l.mtu), nil
		}
	}
	return usual, nil
}

// clampMTU keeps to what a veth can have.
func clampMTU(mtu int) int { return max(68, min(mtu, 65535)) }
