package netdev

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoRDMA means that the kernel has no RDMA.
var ErrNoRDMA = errors.New("the kernel has no RDMA (ib_core isn't loaded)")

// MoveInRDMA moves RDMA devices, and the network interfaces from which they have their addresses, from the caller's network
// namespace into this one, all or none. Devices that are already in this namespace stay: containers that share a namespace
// each call it. It waits up to two seconds for a missing device, which may be on its way back from a container.
//
// It is for machines in RDMA's exclusive mode, in which a device is in one namespace, and returns to the first one when
// that namespace ends. In shared mode every namespace may use every device.
func (n *Namespace) MoveInRDMA(links, interfaces []string) error {
	deadline := time.Now().Add(returnTime)
	for {
		err := n.tryMoveInRDMA(links, interfaces)
		if err == nil || time.Now().After(deadline) || errors.Is(err, ErrNoRDMA) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (n *Namespace) tryMoveInRDMA(links, interfaces []string) error {
	links, err := n.missingRDMA(links)
	if err != nil {
		return err
	}
	devices, err := n.missingInterfaces(interfaces)
	if err != nil {
		return err
	}
	undo := func() error { return nil }
	if len(links) > 0 {
		if undo, err = moveRDMA(n.own, n.file, links); err != nil {
			return err
		}
	}
	if len(devices) == 0 {
		return nil
	}
	if err := n.MoveIn(devices); err != nil {
		return errors.Join(err, undo())
	}
	return nil
}

// missingRDMA returns the RDMA devices that are not in the namespace.
func (n *Namespace) missingRDMA(names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	there, err := openRDMA(n.file)
	if err != nil {
		return nil, fmt.Errorf("RDMA device %s: %w", names[0], err)
	}
	defer there.Close()
	have, err := listRDMA(there)
	if err != nil {
		return nil, fmt.Errorf("RDMA device %s: %w", names[0], err)
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return have[name] != nil }), nil
}

// missingInterfaces returns the interfaces that are not in the namespace.
func (n *Namespace) missingInterfaces(names []string) (missing []Device, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	there, err := openNetlinkIn(n.file, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer there.Close()
	for _, name := range names {
		_, err := findLink(there, name)
		if errors.Is(err, ErrMissing) {
			missing = append(missing, Device{Host: name, Name: name})
		} else if err != nil {
			return nil, fmt.Errorf("network device %s: %w", name, err)
		}
	}
	return missing, nil
}

// openRDMA opens a socket of the RDMA subsystem in a network namespace. Its error Is
// [ErrNoRDMA].
func openRDMA(ns *os.File) (*netlink.Handle, error) {
	kernel, err := openNetlinkIn(ns, unix.NETLINK_RDMA)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, ErrNoRDMA
	}
	return kernel, err
}

// rdmaSocket has the methods of netlink.Handle that are used, for tests.
type rdmaSocket interface {
	RdmaLinkList() ([]*netlink.RdmaLink, error)
	RdmaLinkSetNsFd(*netlink.RdmaLink, uint32) error
}

// listRDMA lists the RDMA devices of the socket's namespace by name.
func listRDMA(kernel rdmaSocket) (map[string]*netlink.RdmaLink, error) {
	list, err := RetryDump(kernel.RdmaLinkList)
	if err != nil {
		return nil, fmt.Errorf("list RDMA devices: %w", err)
	}
	all := map[string]*netlink.RdmaLink{}
	for _, l := range list {
		all[l.Attrs.Name] = l
	}
	return all, nil
}

// moveRDMA moves RDMA devices from one network namespace into another, all or none. A
// missing one is an error that Is [ErrMissing], known before anything is moved. undo
// brings the devices back.
func moveRDMA(from, to *os.File, names []string) (undo func() error, err error) {
	kernel, err := openRDMA(from)
	if err != nil {
		return nil, err
	}
	defer kernel.Close()
	moveBack := func(names []string) error {
		if len(names) == 0 {
			return nil
		}
		there, err := openRDMA(to)
		if err != nil {
			return err
		}
		defer there.Close()
		return moveRDMALinks(there, from, names, func([]string) error { return nil })
	}
	if err := moveRDMALinks(kernel, to, names, moveBack); err != nil {
		return nil, err
	}
	return func() error { return moveBack(names) }, nil
}

// moveRDMALinks calls moveBack with those that were moved before an error.
func moveRDMALinks(kernel rdmaSocket, to *os.File, names []string, moveBack func([]string) error) error {
	have, err := listRDMA(kernel)
	if err != nil {
		return err
	}
	for _, name := range names {
		if have[name] == nil {
			return fmt.Errorf("RDMA device %s: %w; here are %v", name, ErrMissing, slices.Sorted(maps.Keys(have)))
		}
	}
	for i, name := range names {
		if err := kernel.RdmaLinkSetNsFd(have[name], uint32(to.Fd())); err != nil {
			return errors.Join(fmt.Errorf("move RDMA device %s: %w", name, err), moveBack(names[:i]))
		}
	}
	return nil
}
