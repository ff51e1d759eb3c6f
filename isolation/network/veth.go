package network

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/netdev"
)

// makeWayOut makes the veth pair and sets up the host's end of it. On an error nothing of
// the pair is left.
func (o Options) makeWayOut(kernel *netlink.Handle, n Network) error {
	name := InterfaceName(o.Gang)
	if err := makePair(kernel, name, o, n.MTU); err != nil {
		return err
	}
	err := o.Host.restrictInterface(name)
	if err == nil {
		err = forgetConnections(n.Address.Addr())
	}
	if err == nil {
		_, err = setUp(kernel, name, netip.PrefixFrom(n.Gateway, n.Address.Bits()))
	}
	if err != nil {
		return errors.Join(err, removeInterface(kernel, name))
	}
	return nil
}

// makePair makes both ends in one step, each in its namespace. Their hardware addresses
// are set here: udev would replace those that the kernel makes up, a moment later.
func makePair(kernel *netlink.Handle, name string, o Options, mtu int) error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU, attributes.HardwareAddr = name, mtu, hardwareAddress(o.Gang, 0)
	pair := netlink.NewVeth(attributes)
	pair.PeerName, pair.PeerHardwareAddr, pair.PeerNamespace = insideName, hardwareAddress(o.Gang, 1), netlink.NsFd(o.NetNS.Fd())
	err := kernel.LinkAdd(pair)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return ErrKind
	}
	if err != nil {
		return fmt.Errorf("make interfaces %s and %s: %w", name, insideName, err)
	}
	return nil
}

// hardwareAddress is the locally administered address of one of the ends of a gang's pair.
func hardwareAddress(gang string, end byte) net.HardwareAddr {
	h := fnv.New64a()
	_, _ = h.Write(append([]byte(gang), end)) // never fails
	sum := h.Sum(nil)
	return append(net.HardwareAddr{0x02}, sum[:5]...)
}

// removeInterface deletes an interface, and its pair with it. A missing one is no error.
func removeInterface(kernel *netlink.Handle, name string) error {
	l, err := kernel.LinkByName(name)
	if err == nil {
		err = kernel.LinkDel(l)
	}
	var missing netlink.LinkNotFoundError
	if err != nil && !errors.As(err, &missing) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove interface %s: %w", name, err)
	}
	return nil
}

// setUp gives an interface its address, if a is valid, and sets it up.
func setUp(kernel *netlink.Handle, name string, a netip.Prefix) (netlink.Link, error) {
	l, err := kernel.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("look for interface %s: %w", name, err)
	}
	if a.IsValid() {
		address := &net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())}
		if err := kernel.AddrAdd(l, &netlink.Addr{IPNet: address}); err != nil {
			return nil, fmt.Errorf("give interface %s the address %s: %w", name, a, err)
		}
	}
	if err := kernel.LinkSetUp(l); err != nil {
		return nil, fmt.Errorf("set interface %s up: %w", name, err)
	}
	return l, nil
}

// awaitCarrier returns when the kernel sends packets by an interface that is up. The kernel
// notices a carrier up to a second later, or as soon as it is asked, by name, for the
// interface; so it is asked repeatedly. It is no error if there is none after two seconds:
// the other end may be down.
func awaitCarrier(kernel *netlink.Handle, name string) error {
	const limit, pause = 2 * time.Second, time.Millisecond
	for end := time.Now().Add(limit); ; time.Sleep(pause) {
		l, err := kernel.LinkByName(name)
		if err != nil {
			return fmt.Errorf("look for interface %s: %w", name, err)
		}
		if l.Attrs().RawFlags&unix.IFF_RUNNING != 0 || time.Now().After(end) {
			return nil
		}
	}
}

// restrictInterface has the host's end of a pair forward packets, and accept none that
// isn't from the gang. It has to be called before the interface is up.
func (h Host) restrictInterface(name string) error {
	for _, s := range []struct{ key, value string }{
		{"forwarding", "1"},
		{"rp_filter", "1"},
		{"route_localnet", "0"},
		{"arp_ignore", "1"},
		{"accept_source_route", "0"},
		{"accept_redirects", "0"},
		{"send_redirects", "0"},
	} {
		if err := h.setSysctl(filepath.Join("ipv4/conf", name, s.key), s.value); err != nil {
			return err
		}
	}
	return h.disableIPv6(name)
}

// disableIPv6 does nothing in a kernel without IPv6.
func (h Host) disableIPv6(name string) error {
	err := h.setSysctl(filepath.Join("ipv6/conf", name, "disable_ipv6"), "1")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Numbers of linux/netfilter/nfnetlink_conntrack.h that the library doesn't have.
const (
	ctaFilter           = 25 // CTA_FILTER
	ctaFilterOrigFlags  = 1  // CTA_FILTER_ORIG_FLAGS
	ctaFilterReplyFlags = 2  // CTA_FILTER_REPLY_FLAGS
	ctaFilterIPSource   = 1  // CTA_FILTER_F_CTA_IP_SRC
)

// forgetConnections removes connections of the address's previous owner from the conntrack table.
// Otherwise their packets would reach the new owner. The kernel picks the connections, from 5.8 on:
// the library's own way is to read the whole table, which may have a million. Older kernels forget
// nothing, and rely on the search for subnets, which begins elsewhere for each gang.
func forgetConnections(address netip.Addr) error {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: unix.NFNETLINK_V0 + 1}) // 1: of this family alone
	tuple := nl.NewRtAttr(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, nil)
	tuple.AddRtAttr(nl.CTA_TUPLE_IP|unix.NLA_F_NESTED, nil).AddRtAttr(nl.CTA_IP_V4_SRC, address.AsSlice())
	filter := nl.NewRtAttr(ctaFilter|unix.NLA_F_NESTED, nil)
	filter.AddRtAttr(ctaFilterOrigFlags, nl.Uint32Attr(ctaFilterIPSource))
	filter.AddRtAttr(ctaFilterReplyFlags, nl.Uint32Attr(0))
	request.AddData(tuple)
	request.AddData(filter)
	_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	for _, harmless := range []error{unix.EINVAL, unix.EOPNOTSUPP, unix.ENOENT, unix.ERANGE} {
		if errors.Is(err, harmless) {
			return nil
		}
	}
	if err != nil {
		return firewallError(fmt.Sprintf("forget the connections of %s", address), err)
	}
	return nil
}

// setUpInside sets up lo, and eth0 if there is a way out. The calling thread is in the
// gang's network namespace.
func setUpInside(h Host, n Network) error {
	kernel, err := netdev.OpenRoutes()
	if err != nil {
		return err
	}
	defer kernel.Close()
	// As in other containers: all users may use low ports, and all groups may ping. In a user namespace both ends of the range must
	// be groups that are mapped there: usually 0 to 65535, or only 0.
	for key, values := range map[string][]string{"ipv4/ip_unprivileged_port_start": {"0"}, "ipv4/ping_group_range": {"0 2147483647", "0 65535", "0 0"}} {
		err := h.setSysctl(key, values[0])
		for _, value := range values[1:] {
			if errors.Is(err, unix.EINVAL) {
				err = h.setSysctl(key, value)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if _, err := setUp(kernel, "lo", netip.Prefix{}); err != nil || !n.Gateway.IsValid() {
		return err
	}
	if err := h.disableIPv6(insideName); err != nil {
		return err
	}
	l, err := setUp(kernel, insideName, n.Address)
	if err != nil {
		return err
	}
	if err := kernel.RouteAdd(&netlink.Route{Gw: n.Gateway.AsSlice(), LinkIndex: l.Attrs().Index}); err != nil {
		return fmt.Errorf("set the default route to %s: %w", n.Gateway, err)
	}
	return awaitCarrier(kernel, insideName)
}

// RunInNamespace calls f on a thread that is in a network namespace and ends in there.
// Sockets that f opens belong to that namespace; so do the files of /proc/sys/net that f
// opens.
func RunInNamespace(ns *os.File, f func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
		if unix.Gettid() == unix.Getpid() {
			// The main thread never ends. While this goroutine keeps it, another thread does it.
			err = RunInNamespace(ns, f)
			runtime.UnlockOSThread()
			return
		}
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		err = f()
	}()
	<-done
	return err
}
