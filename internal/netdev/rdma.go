package netdev

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/netlink"
	"github.com/berth-gpu/berth/internal/rdma"
)

// TakeRDMA moves RDMA devices, where the kernel has each in one namespace alone, and
// network interfaces that they have their addresses from, into this namespace, all or
// none. What is there already stays: several containers share a namespace, and each asks.
// What is missing on the host is waited for a moment, as it may be on its way back.
func (n *Namespace) TakeRDMA(links, interfaces []string) error {
	deadline := time.Now().Add(patience)
	for {
		err := n.takeRDMA(links, interfaces)
		if err == nil || time.Now().After(deadline) || errors.Is(err, rdma.ErrNone) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (n *Namespace) takeRDMA(links, interfaces []string) error {
	links, err := n.withoutLinks(links)
	if err != nil {
		return err
	}
	names := map[string]string{}
	for _, name := range interfaces {
		inside, err := n.has(name)
		if err != nil {
			return fmt.Errorf("network device %s: %w", name, err)
		}
		if !inside {
			names[name] = name
		}
	}
	undo := func() error { return nil }
	if len(links) > 0 {
		if undo, err = rdma.Take(n.own, n.file, links); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		return nil
	}
	if err := n.Take(Devices(names)); err != nil {
		return errors.Join(err, undo())
	}
	return nil
}

// withoutLinks leaves out the RDMA devices that are in the namespace.
func (n *Namespace) withoutLinks(names []string) (missing []string, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	var have map[string]uint32
	err = netlink.Within(n.file, func() (err error) {
		c, err := rdma.Dial()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		have, err = c.Devices()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("RDMA device %s: %w", names[0], err)
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, ok := have[name]; return ok }), nil
}

// has says whether an interface is in the namespace.
func (n *Namespace) has(name string) (inside bool, err error) {
	there, err := n.dial()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, there.Close()) }()
	_, err = there.link(name)
	if errors.Is(err, ErrMissing) {
		return false, nil
	}
	return err == nil, err
}
