// Package netdev moves network interfaces and RDMA devices of the host into the network
// namespace of a container that is being created.
//
// It implements linux.netDevices of the OCI runtime specification 1.3: an interface is moved and renamed in one step, keeps
// its permanent addresses of global scope, and is up afterwards. Routes and other addresses are lost. Either all interfaces
// are moved or none: if one can't be moved, those before it are moved back with their addresses.
//
// berth doesn't move an interface back when the container has ended. The kernel moves hardware interfaces back when the
// namespace ends. That may be later than the container (a pod's namespace), and is always shortly after the last process:
// see [AwaitDevices]. The interface comes back without addresses, with the name that it had in the container, or as
// "dev<index>" if that name is taken. The host's name becomes an alternative name of the interface, so that it is still
// found. Virtual interfaces (veth, macvlan) end with the namespace.
//
// The host's network namespace is the caller's, as a runtime's hooks have it.
//
// The package needs CAP_NET_ADMIN in both namespaces, CAP_SYS_ADMIN, and Linux 5.5. It
// speaks netlink by github.com/vishvananda/netlink, with which berth-hook starts 0.1 ms
// later than without (package net, which that library needs, included).
package netdev

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// altNameSize is the most bytes of an alternative name, with its NUL (linux/if.h,
// ALTIFNAMSIZ).
const altNameSize = 128

var (
	// ErrMissing means that the host has no such interface.
	ErrMissing = errors.New("it isn't in the host's network namespace")
	// ErrShared means that the container is in the host's network namespace.
	ErrShared = errors.New("the container has the host's network namespace, and none of its own")
)

// Device is an interface of the host, and its name in the container.
type Device struct {
	// Host may be an alternative name.
	Host string
	// Name may end in "%d", which is replaced by the first free number. "" means Host.
	Name string
}

// SortDevices returns the devices of a map from names on the host to names in the container, sorted by the former.
func SortDevices(names map[string]string) (all []Device) {
	for _, host := range slices.Sorted(maps.Keys(names)) {
		all = append(all, Device{host, names[host]})
	}
	return all
}

// CheckDevices returns an error for invalid or repeated names. It doesn't check that the devices exist.
func CheckDevices(devices []Device) error {
	hosts, names := map[string]bool{}, map[string]bool{}
	for _, d := range devices {
		switch {
		case !isValidName(d.Host, altNameSize):
			return fmt.Errorf("network device %q: no interface can be called so", d.Host)
		case !isValidName(d.nameInside(), unix.IFNAMSIZ), strings.Contains(strings.TrimSuffix(d.nameInside(), "%d"), "%"):
			return fmt.Errorf("network device %s: it can't be called %q in a container", d.Host, d.nameInside())
		case hosts[d.Host]:
			return fmt.Errorf("network device %s is named twice", d.Host)
		case names[d.nameInside()] && !strings.HasSuffix(d.nameInside(), "%d"):
			return fmt.Errorf("network device %s: another one is called %s in the container", d.Host, d.nameInside())
		}
		hosts[d.Host], names[d.nameInside()] = true, true
	}
	return nil
}

func (d Device) nameInside() string {
	if d.Name == "" {
		return d.Host
	}
	return d.Name
}

// isValidName reports whether the kernel accepts a name; size includes the NUL at the end.
func isValidName(name string, size int) bool {
	return name != "" && len(name) < size && name != "." && name != ".." &&
		!strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == ':' || r <= ' ' || r == 0x7f })
}

// returnTime bounds the wait for hardware to come back: the kernel removes a namespace some time after its last process,
// and closes the device first.
const returnTime = 2 * time.Second

// AwaitDevices waits until all devices are in the caller's network namespace: they may be on their way back from a container
// that has just ended. A device that is missing for returnTime is an error that Is [ErrMissing].
func AwaitDevices(ctx context.Context, devices []Device) error {
	if err := CheckDevices(devices); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, returnTime)
	defer cancel()
	return awaitDevices(ctx, devices)
}

// awaitDevices polls, because the end of another namespace sends no event to the caller's.
func awaitDevices(ctx context.Context, devices []Device) error {
	here, err := OpenRoutes()
	if err != nil {
		return err
	}
	defer here.Close()
	for _, d := range devices {
		_, err := findLink(here, d.Host)
		for errors.Is(err, ErrMissing) && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
			_, err = findLink(here, d.Host)
		}
		if err != nil {
			return fmt.Errorf("network device %s: %w", d.Host, err)
		}
	}
	return nil
}

// Namespace is the network namespace of a process.
type Namespace struct {
	file *os.File
	own  *os.File // the caller's
}

// OpenNamespace opens the network namespace of a live process; proc is where procfs is
// mounted. It is an error if the process ends meanwhile, so the namespace is never that of
// another process with the same number. The caller's own namespace is an error that Is
// [ErrShared].
func OpenNamespace(proc string, pid int) (n *Namespace, err error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	defer func() { err = errors.Join(err, unix.Close(pidfd)) }()
	n = &Namespace{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
			n = nil
		}
	}()
	if n.file, err = os.Open(fmt.Sprintf("%s/%d/ns/net", proc, pid)); err != nil {
		return n, err
	}
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); err != nil {
		return n, fmt.Errorf("process %d: %w", pid, err)
	}
	if n.own, err = os.Open(proc + "/thread-self/ns/net"); err != nil {
		return n, err
	}
	return n, n.checkOther()
}

func (n *Namespace) checkOther() error {
	its, err := n.file.Stat()
	if err != nil {
		return err
	}
	own, err := n.own.Stat()
	if err == nil && os.SameFile(its, own) {
		err = ErrShared
	}
	return err
}

// Close closes the namespace's files.
func (n *Namespace) Close() (err error) {
	for _, f := range []*os.File{n.file, n.own} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}
