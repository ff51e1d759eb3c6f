package netdev

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/netlink"
)

// Take moves devices from the caller's network namespace into this one. A device
// that isn't there is an error that Is [ErrMissing], a name that is taken inside one
// that Is fs.ErrExist: both are known before anything is moved. On an error all devices
// are where they were. One that had been moved already, because what failed couldn't
// be foreseen, is back with its name, addresses and state, but not with its routes nor
// as a port of a bridge.
func (n *Namespace) Take(devices []Device) (err error) {
	if err := Valid(devices); err != nil {
		return err
	}
	t := transfer{Namespace: n}
	if t.here, err = dial(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.here.Close()) }()
	if t.there, err = n.dial(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.there.Close()) }()
	return t.all(devices)
}

// dial opens a socket in the namespace.
func (n *Namespace) dial() (c *conn, err error) {
	err = netlink.Within(n.file, func() error {
		c, err = dial()
		return err
	})
	return c, err
}

// transfer is the two sides of a move.
type transfer struct {
	*Namespace
	here, there *conn
}

// moving is a device on its way.
type moving struct {
	Device
	link
	addresses []address
	name      string // inside
}

// all moves devices after all of them were looked at.
func (t transfer) all(devices []Device) error {
	var list []moving
	for _, d := range devices {
		m, err := t.look(d, list)
		if err != nil {
			return fmt.Errorf("network device %s: %w", d.Host, err)
		}
		list = append(list, m)
	}
	return t.allOrNone(list)
}

func (t transfer) allOrNone(list []moving) error {
	err := t.moveAll(list)
	for i := len(list) - 1; i >= 0 && err != nil; i-- {
		err = errors.Join(err, t.undo(list[i]))
	}
	return err
}

func (t transfer) moveAll(list []moving) error {
	for _, step := range []func(moving) error{t.move, t.remember} {
		for _, m := range list {
			if err := step(m); err != nil {
				return fmt.Errorf("move network device %s: %w", m.Host, err)
			}
		}
	}
	return nil
}

// look finds the device, reads what is to be kept, and settles on its name: one that
// is free inside, and none of those before.
func (t transfer) look(d Device, before []moving) (m moving, err error) {
	m = moving{Device: d}
	if m.link, err = t.here.link(d.Host); err != nil {
		return m, err
	}
	for _, other := range before {
		if other.index == m.index {
			return m, fmt.Errorf("it is the same as %s", other.Host)
		}
	}
	if m.addresses, err = t.here.addresses(m.index); err != nil {
		return m, err
	}
	m.name, err = t.free(d.inside(), before)
	return m, err
}

func (t transfer) free(pattern string, before []moving) (string, error) {
	stem, numbered := strings.CutSuffix(pattern, "%d")
	for i := 0; ; i++ {
		name := pattern
		if numbered {
			name = stem + strconv.Itoa(i)
		}
		if !valid(name, unix.IFNAMSIZ) {
			return "", fmt.Errorf("%s in the container: %w", pattern, unix.EEXIST)
		}
		taken := false
		for _, m := range before {
			taken = taken || m.name == name
		}
		if !taken {
			_, err := t.there.link(name)
			if errors.Is(err, ErrMissing) {
				return name, nil
			}
			if err != nil {
				return "", err
			}
		}
		if !numbered {
			return "", fmt.Errorf("%s in the container: %w", pattern, unix.EEXIST)
		}
	}
}

// move is one step of the kernel's, and then the addresses are brought after it: the
// kernel drops them, and sets the device down.
func (t transfer) move(m moving) error {
	// Its own name can't be an alternative one as well.
	if m.link.name != m.name && m.Host == m.name {
		if err := t.here.alternative(unix.RTM_DELLINKPROP, m.index, m.Host); err != nil {
			return fmt.Errorf("take off its alternative name: %w", err)
		}
	}
	if err := t.here.carry(m.index, int(t.file.Fd()), m.name); err != nil {
		return err
	}
	return settle(t.there, m.name, m.addresses, true)
}

// settle gives a device that has just come its addresses, and sets it up.
func settle(c *conn, name string, addresses []address, up bool) error {
	l, err := c.link(name)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		if err := c.add(l.index, a); err != nil {
			return fmt.Errorf("set address %s: %w", a, err)
		}
	}
	if !up {
		return nil
	}
	if err := c.up(l.index); err != nil {
		return fmt.Errorf("set it up: %w", err)
	}
	return nil
}

// undo brings a device back that has been moved, in full or half. It is known by its
// hardware address. One that never left needs nothing.
func (t transfer) undo(m moving) error {
	if l, err := t.here.link(m.link.name); err == nil && l.index == m.index {
		return t.rename(m)
	}
	for _, name := range []string{m.name, m.link.name} {
		l, err := t.there.link(name)
		if err != nil || !bytes.Equal(l.hardware, m.hardware) {
			continue
		}
		// Its own name, which it gets back, can't be an alternative one as well.
		_ = t.there.alternative(unix.RTM_DELLINKPROP, l.index, m.link.name) // mostly it isn't
		if err := t.there.carry(l.index, int(t.own.Fd()), m.link.name); err != nil {
			return fmt.Errorf("bring network device %s back: %w", m.Host, err)
		}
		if err := settle(t.here, m.link.name, m.addresses, m.isUp); err != nil {
			return fmt.Errorf("network device %s is back: %w", m.Host, err)
		}
		return t.rename(m)
	}
	return fmt.Errorf("bring network device %s back: %w", m.Host, ErrMissing)
}

// rename puts the host's name back on a device that it was an alternative name of.
func (t transfer) rename(m moving) error {
	if m.link.name == m.name || m.Host != m.name {
		return nil
	}
	l, err := t.here.link(m.link.name)
	if err != nil {
		return err
	}
	err = t.here.alternative(unix.RTM_NEWLINKPROP, l.index, m.Host)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// remember puts the host's name on the device inside, so that it is found by it when
// it is back. Where the container has another interface of that name, it can't be.
func (t transfer) remember(m moving) error {
	if m.name == m.Host {
		return nil
	}
	l, err := t.there.link(m.name)
	if err != nil {
		return err
	}
	err = t.there.alternative(unix.RTM_NEWLINKPROP, l.index, m.Host)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}
