package netdev

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// MoveIn moves devices from the caller's network namespace into this one. A missing device is an error that Is
// [ErrMissing], and a name that is taken in this namespace an error that Is fs.ErrExist; both are detected before
// anything is moved. After an error all devices are in the caller's namespace. A device that was moved before the error
// has its name, addresses and state again, but not its routes, and it is no port of a bridge.
func (n *Namespace) MoveIn(devices []Device) error {
	if err := CheckDevices(devices); err != nil {
		return err
	}
	t, err := n.openTransfer()
	if err != nil {
		return err
	}
	defer t.close()
	var list []moving
	for _, d := range devices {
		m, err := t.inspect(d, list)
		if err != nil {
			return fmt.Errorf("network device %s: %w", d.Host, err)
		}
		list = append(list, m)
	}
	return t.moveAllOrNone(list)
}

// transfer has netlink sockets in the two namespaces of a move.
type transfer struct {
	*Namespace
	here, there *netlink.Handle
}

func (n *Namespace) openTransfer() (t transfer, err error) {
	t.Namespace = n
	if t.here, err = OpenRoutes(); err != nil {
		return t, err
	}
	if t.there, err = openNetlinkIn(n.file, unix.NETLINK_ROUTE); err != nil {
		t.here.Close()
	}
	return t, err
}

func (t transfer) close() {
	t.here.Close()
	t.there.Close()
}

// moving is a device that is moved, with its properties from before the move.
type moving struct {
	Device
	*netlink.LinkAttrs
	addresses []netlink.Addr
	target    string // its name in the container's namespace
}

// inspect finds the device, reads its addresses, and chooses its name in the container's namespace: one that is neither
// taken there nor chosen for a device in before.
func (t transfer) inspect(d Device, before []moving) (m moving, err error) {
	l, err := findLink(t.here, d.Host)
	if err != nil {
		return m, err
	}
	m = moving{Device: d, LinkAttrs: l.Attrs()}
	for _, other := range before {
		if other.Index == m.Index {
			return m, fmt.Errorf("it is the same as %s", other.Host)
		}
	}
	if m.addresses, err = keptAddresses(t.here, l); err != nil {
		return m, err
	}
	m.target, err = t.freeName(d.nameInside(), before)
	return m, err
}

func (t transfer) freeName(pattern string, before []moving) (string, error) {
	stem, numbered := strings.CutSuffix(pattern, "%d")
	for i := 0; ; i++ {
		name := pattern
		if numbered {
			name = stem + strconv.Itoa(i)
		}
		if !isValidName(name, unix.IFNAMSIZ) {
			return "", fmt.Errorf("%s in the container: %w", pattern, unix.EEXIST)
		}
		if !slices.ContainsFunc(before, func(m moving) bool { return m.target == name }) {
			_, err := findLink(t.there, name)
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

func (t transfer) moveAllOrNone(list []moving) error {
	err := t.moveAll(list)
	if err == nil {
		return nil
	}
	for _, m := range slices.Backward(list) {
		err = errors.Join(err, t.moveBack(m))
	}
	return err
}

// moveAll moves all devices and then sets their alternative names: the host's name of one device may be the new name of
// another.
func (t transfer) moveAll(list []moving) error {
	for _, step := range []func(moving) error{t.moveDevice, t.keepHostName} {
		for _, m := range list {
			if err := step(m); err != nil {
				return fmt.Errorf("move network device %s: %w", m.Host, err)
			}
		}
	}
	return nil
}

// moveDevice moves a device, sets its addresses again and sets it up: the kernel removes addresses and sets it down.
func (t transfer) moveDevice(m moving) error {
	// A name can't be both name and alternative name of an interface.
	if m.LinkAttrs.Name != m.target && m.Host == m.target {
		if err := t.here.LinkDelAltName(&netlink.Device{LinkAttrs: *m.LinkAttrs}, m.Host); err != nil {
			return fmt.Errorf("remove its alternative name: %w", err)
		}
	}
	if err := moveLink(t.own, t.file, m.Index, m.target); err != nil {
		return err
	}
	return setUpLink(t.there, m.target, m.addresses, true)
}

// moveBack moves a device back to the host's namespace, however far its move had got. The device is identified by its
// hardware address. A device that is still in the host's namespace stays.
func (t transfer) moveBack(m moving) error {
	if l, err := findLink(t.here, m.LinkAttrs.Name); err == nil && l.Attrs().Index == m.Index {
		return t.restoreAltName(m)
	}
	for _, name := range []string{m.target, m.LinkAttrs.Name} {
		l, err := findLink(t.there, name)
		if err != nil || !bytes.Equal(l.Attrs().HardwareAddr, m.HardwareAddr) {
			continue
		}
		// A name can't be both name and alternative name of an interface.
		_ = t.there.LinkDelAltName(l, m.LinkAttrs.Name) // mostly there is no such alternative name
		if err := moveLink(t.file, t.own, l.Attrs().Index, m.LinkAttrs.Name); err != nil {
			return fmt.Errorf("bring network device %s back: %w", m.Host, err)
		}
		if err := setUpLink(t.here, m.LinkAttrs.Name, m.addresses, m.Flags&net.FlagUp != 0); err != nil {
			return fmt.Errorf("network device %s is back: %w", m.Host, err)
		}
		return t.restoreAltName(m)
	}
	return fmt.Errorf("bring network device %s back: %w", m.Host, ErrMissing)
}

// restoreAltName restores the alternative name that moveDevice has removed.
func (t transfer) restoreAltName(m moving) error {
	if m.LinkAttrs.Name == m.target || m.Host != m.target {
		return nil
	}
	return addAltName(t.here, m.LinkAttrs.Name, m.Host)
}

// keepHostName makes the host's name an alternative name of the device, by which the device is found when it is back. It is
// no error if another interface of the container has this name.
func (t transfer) keepHostName(m moving) error {
	if m.target == m.Host {
		return nil
	}
	return addAltName(t.there, m.target, m.Host)
}

// addAltName adds an alternative name to an interface. A name that is taken is no error.
func addAltName(kernel *netlink.Handle, name, alternative string) error {
	l, err := findLink(kernel, name)
	if err != nil {
		return err
	}
	if err := kernel.LinkAddAltName(l, alternative); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}
