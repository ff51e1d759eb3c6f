package netdev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

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

// altNameSize is the most bytes of an alternative name, with its NUL
// (linux/if.h, ALTIFNAMSIZ).
const altNameSize = 128

// link is an interface.
type link struct {
	index    int32
	name     string // the first one
	hardware []byte // its address
	isUp     bool
}

// header is a struct ifinfomsg.
func header(index int32, flags, change uint32) []byte {
	b := make([]byte, 4, 64)
	b = binary.NativeEndian.AppendUint32(b, uint32(index))
	b = binary.NativeEndian.AppendUint32(b, flags)
	return binary.NativeEndian.AppendUint32(b, change)
}

// link finds an interface by one of its names. Its error Is [ErrMissing].
func (c *conn) link(name string) (link, error) {
	answers, err := c.Ask(unix.RTM_GETLINK, 0, netlink.Append(header(0, 0, 0), unix.IFLA_ALT_IFNAME, append([]byte(name), 0)))
	if errors.Is(err, unix.ENODEV) {
		return link{}, ErrMissing
	}
	if err != nil {
		return link{}, fmt.Errorf("look for interface %s: %w", name, err)
	}
	for _, a := range answers {
		if a.Kind != unix.RTM_NEWLINK || len(a.Body) < unix.SizeofIfInfomsg {
			continue
		}
		all := netlink.Attributes(a.Body[unix.SizeofIfInfomsg:])
		return link{
			index: int32(binary.NativeEndian.Uint32(a.Body[4:])), name: netlink.Text(all[unix.IFLA_IFNAME]),
			hardware: all[unix.IFLA_ADDRESS], isUp: binary.NativeEndian.Uint32(a.Body[8:])&unix.IFF_UP != 0,
		}, nil
	}
	return link{}, fmt.Errorf("look for interface %s: the kernel says nothing", name)
}

// carry moves an interface into the namespace of the descriptor, and renames it.
func (c *conn) carry(index int32, ns int, name string) error {
	b := header(index, 0, 0)
	b = netlink.Append(b, unix.IFLA_NET_NS_FD, binary.NativeEndian.AppendUint32(nil, uint32(ns)))
	b = netlink.Append(b, unix.IFLA_IFNAME, append([]byte(name), 0))
	_, err := c.Ask(unix.RTM_SETLINK, 0, b)
	return err
}

func (c *conn) up(index int32) error {
	_, err := c.Ask(unix.RTM_SETLINK, 0, header(index, unix.IFF_UP, unix.IFF_UP))
	return err
}

// alternative adds an alternative name, or takes it off: kind says which.
func (c *conn) alternative(kind uint16, index int32, name string) error {
	flags := uint16(0)
	if kind == unix.RTM_NEWLINKPROP {
		flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL | unix.NLM_F_APPEND
	}
	list := netlink.Append(nil, unix.IFLA_ALT_IFNAME, append([]byte(name), 0))
	_, err := c.Ask(kind, flags, netlink.Append(header(index, 0, 0), unix.IFLA_PROP_LIST|unix.NLA_F_NESTED, list))
	return err
}

// address is one of an interface, as it is set again.
type address struct {
	family, bits byte
	flags        uint32
	values       map[uint16][]byte
}

func (a address) String() string {
	value := a.values[unix.IFA_LOCAL]
	if value == nil {
		value = a.values[unix.IFA_ADDRESS]
	}
	ip, _ := netip.AddrFromSlice(value)
	return fmt.Sprintf("%s/%d", ip, a.bits)
}

// kept are what is said of an address beside its flags: not its label, which is the
// interface's name, and not its times, for it is permanent.
func kept() []uint16 {
	return []uint16{unix.IFA_ADDRESS, unix.IFA_LOCAL, unix.IFA_BROADCAST, unix.IFA_RT_PRIORITY}
}

// set are the flags of an address that are set from outside; the others are its state.
const set = unix.IFA_F_NODAD | unix.IFA_F_HOMEADDRESS | unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_MCAUTOJOIN

// addresses lists those that an interface keeps: permanent ones of global scope.
func (c *conn) addresses(index int32) (all []address, err error) {
	answers, err := c.List(unix.RTM_GETADDR, make([]byte, unix.SizeofIfAddrmsg))
	if err != nil {
		return nil, fmt.Errorf("list its addresses: %w", err)
	}
	for _, m := range answers {
		if m.Kind != unix.RTM_NEWADDR || len(m.Body) < unix.SizeofIfAddrmsg || int32(binary.NativeEndian.Uint32(m.Body[4:])) != index {
			continue
		}
		a := address{family: m.Body[0], bits: m.Body[1], flags: uint32(m.Body[2]), values: netlink.Attributes(m.Body[unix.SizeofIfAddrmsg:])}
		if f := a.values[unix.IFA_FLAGS]; len(f) == 4 {
			a.flags = binary.NativeEndian.Uint32(f)
		}
		if a.flags&unix.IFA_F_PERMANENT != 0 && m.Body[3] == unix.RT_SCOPE_UNIVERSE {
			all = append(all, a)
		}
	}
	return all, nil
}

func (c *conn) add(index int32, a address) error {
	b := []byte{a.family, a.bits, 0, unix.RT_SCOPE_UNIVERSE}
	b = binary.NativeEndian.AppendUint32(b, uint32(index))
	for _, kind := range kept() {
		if value, ok := a.values[kind]; ok {
			b = netlink.Append(b, kind, value)
		}
	}
	b = netlink.Append(b, unix.IFA_FLAGS, binary.NativeEndian.AppendUint32(nil, a.flags&set))
	_, err := c.Ask(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, b)
	return err
}
