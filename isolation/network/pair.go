package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net/netip"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/netlink"
)

// vethPeer is VETH_INFO_PEER of linux/veth.h.
const vethPeer = 1

// header is a struct ifinfomsg.
func header(index int32, flags uint32) []byte {
	b := make([]byte, 4, 64)
	b = binary.NativeEndian.AppendUint32(b, uint32(index))
	b = binary.NativeEndian.AppendUint32(b, flags)
	return binary.NativeEndian.AppendUint32(b, flags)
}

// pair makes the way out, and sets up the host's end of it. An end that can't be set up
// is removed.
func (o Options) pair(here *conn, n Network) error {
	name := Interface(o.Gang)
	if err := here.makePair(name, o, n.MTU); err != nil {
		return err
	}
	err := o.Host.restrict(name)
	if err == nil {
		err = forget(n.Address.Addr())
	}
	if err == nil {
		err = here.settle(name, netip.PrefixFrom(n.Gateway, n.Address.Bits()))
	}
	if err != nil {
		return errors.Join(err, here.remove(name))
	}
	return nil
}

// makePair makes both ends in one step, each in its namespace. Their hardware addresses
// are set: what isn't, udev sets anew a little later.
func (c *conn) makePair(name string, o Options, mtu int) error {
	peer := end(header(0, 0), inside, mtu, hardware(o.Gang, 1))
	peer = netlink.AppendUint32(peer, unix.IFLA_NET_NS_FD, uint32(o.NetNS.Fd()))
	info := netlink.AppendText(nil, unix.IFLA_INFO_KIND, "veth")
	info = netlink.AppendNested(info, unix.IFLA_INFO_DATA, netlink.AppendNested(nil, vethPeer, peer))
	request := netlink.AppendNested(end(header(0, 0), name, mtu, hardware(o.Gang, 0)), unix.IFLA_LINKINFO, info)
	_, err := c.Ask(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, request)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return ErrKind
	}
	if err != nil {
		return fmt.Errorf("make interfaces %s and %s: %w", name, inside, err)
	}
	return nil
}

func end(b []byte, name string, mtu int, hardware []byte) []byte {
	b = netlink.AppendText(b, unix.IFLA_IFNAME, name)
	b = netlink.AppendUint32(b, unix.IFLA_MTU, uint32(mtu))
	return netlink.Append(b, unix.IFLA_ADDRESS, hardware)
}

// hardware is an address that is set by software: the gang's, of one of its ends.
func hardware(gang string, end byte) []byte {
	h := fnv.New64a()
	_, _ = h.Write(append([]byte(gang), end)) // a hash takes everything
	sum := h.Sum(nil)
	return append([]byte{0x02}, sum[:5]...)
}

// remove deletes an interface, and so its pair. One that isn't there is no error.
func (c *conn) remove(name string) error {
	_, err := c.Ask(unix.RTM_DELLINK, 0, netlink.AppendText(header(0, 0), unix.IFLA_IFNAME, name))
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove interface %s: %w", name, err)
	}
	return nil
}

// settle gives an interface its address, if it has one, and sets it up.
func (c *conn) settle(name string, a netip.Prefix) error {
	l, err := c.link(name)
	if err != nil {
		return err
	}
	if a.IsValid() {
		if err := c.add(l.index, a); err != nil {
			return fmt.Errorf("give interface %s the address %s: %w", name, a, err)
		}
	}
	if _, err := c.Ask(unix.RTM_SETLINK, 0, header(l.index, unix.IFF_UP)); err != nil {
		return fmt.Errorf("set interface %s up: %w", name, err)
	}
	return nil
}

// await returns when the kernel sends packets by an interface that is up: it notices a
// carrier with a delay, at most of a second. A link that doesn't come is no error; the
// other end may be down.
func (c *conn) await(name string) error {
	const patience, pause = 2 * time.Second, time.Millisecond
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		l, err := c.link(name)
		if err != nil || l.isRunning || time.Now().After(end) {
			return err
		}
	}
}

func (c *conn) link(name string) (link, error) {
	answers, err := c.Ask(unix.RTM_GETLINK, 0, netlink.AppendText(header(0, 0), unix.IFLA_IFNAME, name))
	if err != nil {
		return link{}, fmt.Errorf("look for interface %s: %w", name, err)
	}
	for _, m := range answers {
		if m.Kind == unix.RTM_NEWLINK && len(m.Body) >= unix.SizeofIfInfomsg {
			return readLink(m.Body), nil
		}
	}
	return link{}, fmt.Errorf("look for interface %s: the kernel says nothing", name)
}

func (c *conn) add(index int32, a netip.Prefix) error {
	ip, last := a.Addr().As4(), address(spanOf(a).last).As4()
	b := []byte{unix.AF_INET, byte(a.Bits()), 0, unix.RT_SCOPE_UNIVERSE}
	b = binary.NativeEndian.AppendUint32(b, uint32(index))
	b = netlink.Append(b, unix.IFA_LOCAL, ip[:])
	b = netlink.Append(b, unix.IFA_ADDRESS, ip[:])
	b = netlink.Append(b, unix.IFA_BROADCAST, last[:])
	_, err := c.Ask(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, b)
	return err
}

// restrict has the host's end forward, and take nothing that isn't the gang's. It is
// before the interface is up. A kernel without IPv6 has nothing to switch off.
func (h Host) restrict(name string) error {
	for _, s := range []struct{ key, value string }{
		{"forwarding", "1"},
		{"rp_filter", "1"},
		{"route_localnet", "0"},
		{"arp_ignore", "1"},
		{"accept_source_route", "0"},
		{"accept_redirects", "0"},
		{"send_redirects", "0"},
	} {
		if err := h.set(filepath.Join("ipv4/conf", name, s.key), s.value); err != nil {
			return err
		}
	}
	return h.withoutIPv6(name)
}

func (h Host) withoutIPv6(name string) error {
	err := h.set(filepath.Join("ipv6/conf", name, "disable_ipv6"), "1")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// settleInside sets up lo, and eth0 if there is a way out. The calling thread is in the
// gang's namespace.
func settleInside(h Host, n Network) (err error) {
	c, err := dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	// As in other containers: all ports for everybody, and ping for every group.
	for key, value := range map[string]string{"ipv4/ip_unprivileged_port_start": "0", "ipv4/ping_group_range": "0 2147483647"} {
		if err := h.set(key, value); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := c.settle("lo", netip.Prefix{}); err != nil || !n.Gateway.IsValid() {
		return err
	}
	if err := h.withoutIPv6(inside); err != nil {
		return err
	}
	if err := c.settle(inside, n.Address); err != nil {
		return err
	}
	if err := c.defaultRoute(n.Gateway); err != nil {
		return err
	}
	return c.await(inside)
}

func (c *conn) defaultRoute(gateway netip.Addr) error {
	ip := gateway.As4()
	b := []byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST, 0, 0, 0, 0}
	_, err := c.Ask(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, netlink.Append(b, unix.RTA_GATEWAY, ip[:]))
	if err != nil {
		return fmt.Errorf("set the default route to %s: %w", gateway, err)
	}
	return nil
}
