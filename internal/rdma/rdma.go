// Package rdma asks the kernel, by netlink, which RDMA devices there are and how it
// divides them among network namespaces, and moves devices from one into another.
//
// In shared mode, the usual one, every namespace may use every device. In exclusive mode
// a device is in one, as a network interface is, and goes back to the first one when its
// namespace ends. The mode is the machine's, chosen at boot: nothing here changes it.
//
// Moving needs CAP_NET_ADMIN in both namespaces and Linux 5.3. Source of the format:
// rdma/rdma_netlink.h of Linux 6.1.
package rdma

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/netlink"
)

// Mode is how the kernel divides RDMA devices.
type Mode string

// The modes; None is a kernel without RDMA.
const (
	None      Mode = ""
	Shared    Mode = "shared"
	Exclusive Mode = "exclusive"
)

var (
	// ErrNone: the kernel has no RDMA.
	ErrNone = errors.New("the kernel has no RDMA (ib_core isn't loaded)")
	// ErrMissing: the device isn't in the caller's network namespace.
	ErrMissing = errors.New("it isn't in the host's network namespace")
)

// Requests, answers and attributes of rdma/rdma_netlink.h: a request's kind is
// RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_*).
const (
	client       = 5 << 10 // RDMA_NL_NLDEV
	getDevices   = client + 1
	setDevice    = client + 2
	getSystem    = client + 6
	attrIndex    = 1  // RDMA_NLDEV_ATTR_DEV_INDEX
	attrName     = 2  // RDMA_NLDEV_ATTR_DEV_NAME
	attrMode     = 66 // RDMA_NLDEV_SYS_ATTR_NETNS_MODE
	attrDestined = 68 // RDMA_NLDEV_NET_NS_FD
)

// socket is what is needed of a netlink.Conn.
type socket interface {
	Ask(kind, flags uint16, body []byte) ([]netlink.Message, error)
	List(kind uint16, body []byte) ([]netlink.Message, error)
	Close() error
}

// Conn speaks of the RDMA devices of the network namespace that it was opened in. It is
// for one goroutine.
type Conn struct{ socket socket }

// Dial opens a socket in the namespace of the calling thread. Its error Is [ErrNone].
func Dial() (*Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_RDMA)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, err
	}
	return &Conn{c}, nil
}

// Close gives the socket back.
func (c *Conn) Close() error { return c.socket.Close() }

// Mode asks for the machine's mode. A kernel that doesn't say knows none but shared.
func (c *Conn) Mode() (Mode, error) {
	answers, err := c.socket.Ask(getSystem, 0, nil)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return Shared, nil
	}
	if err != nil {
		return None, fmt.Errorf("ask for the mode of RDMA: %w", err)
	}
	for _, a := range answers {
		if v := netlink.Attributes(a.Body)[attrMode]; a.Kind == getSystem && len(v) == 1 && v[0] == 0 {
			return Exclusive, nil
		}
	}
	return Shared, nil
}

// Devices lists the namespace's devices by name, with their indexes.
func (c *Conn) Devices() (map[string]uint32, error) {
	answers, err := c.socket.List(getDevices, nil)
	if err != nil {
		return nil, fmt.Errorf("list RDMA devices: %w", err)
	}
	all := map[string]uint32{}
	for _, a := range answers {
		attributes := netlink.Attributes(a.Body)
		index, ok := netlink.Uint32(attributes[attrIndex])
		if name := netlink.Text(attributes[attrName]); a.Kind == getDevices && ok && name != "" {
			all[name] = index
		}
	}
	return all, nil
}

// move puts a device of this namespace into another.
func (c *Conn) move(index uint32, ns *os.File) error {
	body := netlink.AppendUint32(nil, attrIndex, index)
	body = netlink.AppendUint32(body, attrDestined, uint32(ns.Fd()))
	_, err := c.socket.Ask(setDevice, 0, body)
	return err
}

// Take moves devices from the caller's network namespace, own, into another, all or none.
// One that isn't here is an error that Is [ErrMissing], known before anything is moved.
// undo brings back what was moved.
func Take(own, ns *os.File, names []string) (undo func() error, err error) {
	here, err := Dial()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, here.Close()) }()
	return here.take(names, ns, func(back []string) error { return bring(own, ns, back) })
}

func (c *Conn) take(names []string, ns *os.File, bring func([]string) error) (undo func() error, err error) {
	have, err := c.Devices()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, ok := have[name]; !ok {
			return nil, fmt.Errorf("RDMA device %s: %w; here are %v", name, ErrMissing, slices.Sorted(maps.Keys(have)))
		}
	}
	for i, name := range names {
		if err := c.move(have[name], ns); err != nil {
			return nil, errors.Join(fmt.Errorf("move RDMA device %s: %w", name, err), bring(names[:i]))
		}
	}
	return func() error { return bring(names) }, nil
}

// bring moves devices back from another namespace.
func bring(own, ns *os.File, names []string) error {
	if len(names) == 0 {
		return nil
	}
	return netlink.Within(ns, func() (err error) {
		there, err := Dial()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, there.Close()) }()
		_, err = there.take(names, own, func([]string) error { return nil })
		return err
	})
}
