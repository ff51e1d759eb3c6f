package netdev

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// RetryDump repeats a list function of the netlink library while the kernel reports that the list has changed during the
// call. After 100 attempts it returns the library's error.
func RetryDump[T any](list func() ([]T, error)) (all []T, err error) {
	const attempts, pause = 100, 100 * time.Microsecond
	for i := range time.Duration(attempts) {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
		time.Sleep(i * pause)
	}
	return all, err
}

// OpenRoutes opens a socket of rtnetlink in the network namespace of the calling thread.
func OpenRoutes() (*netlink.Handle, error) {
	kernel, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return kernel, nil
}

// openNetlinkIn opens a socket in another network namespace.
func openNetlinkIn(ns *os.File, family int) (*netlink.Handle, error) {
	kernel, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), family)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return kernel, nil
}

// findLink finds an interface by one of its names. Its error Is [ErrMissing].
func findLink(kernel *netlink.Handle, name string) (netlink.Link, error) {
	l, err := kernel.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, ErrMissing
	}
	if err != nil {
		return nil, fmt.Errorf("look for interface %s: %w", name, err)
	}
	return l, nil
}

// moveLink moves an interface from one namespace into another and renames it, in one
// request. With the library's two (LinkSetNsFd, LinkSetName) it would fail if the
// interface's old name is taken in the other namespace. The kernel's reason is in the
// error.
func moveLink(from, to *os.File, index int, name string) error {
	socket, err := nl.GetNetlinkSocketAt(netns.NsHandle(from.Fd()), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	defer socket.Close()
	if err := socket.SetExtAck(true); err != nil {
		return fmt.Errorf("set up a netlink socket: %w", err)
	}
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	request.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(index)
	request.AddData(message)
	request.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(to.Fd()))))
	request.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	_, err = request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// settableFlags are the flags of an address that users set; the others are its state.
const settableFlags = unix.IFA_F_NODAD | unix.IFA_F_HOMEADDRESS | unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_MCAUTOJOIN

// keptAddresses lists the addresses of an interface that move with it, as they are to be
// set again: permanent ones of global scope. An address's label, which is the interface's
// name, and the metric of its route aren't kept.
func keptAddresses(kernel *netlink.Handle, l netlink.Link) (kept []netlink.Addr, err error) {
	all, err := RetryDump(func() ([]netlink.Addr, error) { return kernel.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list its addresses: %w", err)
	}
	for _, a := range all {
		if a.Flags&unix.IFA_F_PERMANENT == 0 || a.Scope != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		if a.Broadcast == nil {
			a.Broadcast = net.IPv4zero // otherwise the library computes a broadcast address
		}
		kept = append(kept, netlink.Addr{IPNet: a.IPNet, Peer: a.Peer, Broadcast: a.Broadcast, Flags: a.Flags & settableFlags})
	}
	return kept, nil
}

// setUpLink sets the addresses of an interface that was moved, and with up sets it up.
func setUpLink(kernel *netlink.Handle, name string, addresses []netlink.Addr, up bool) error {
	l, err := findLink(kernel, name)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		if err := kernel.AddrAdd(l, &a); err != nil {
			return fmt.Errorf("set address %s: %w", a.IPNet, err)
		}
	}
	if !up {
		return nil
	}
	if err := kernel.LinkSetUp(l); err != nil {
		return fmt.Errorf("set it up: %w", err)
	}
	return nil
}
