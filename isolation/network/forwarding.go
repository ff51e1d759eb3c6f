package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// Whether the kernel forwards a packet depends on the switch of the interface by which the
// packet arrives (net.ipv4.conf.NAME.forwarding). ip_forward, the switch of all interfaces,
// is never changed. Where it is off, the outer interfaces are switched on one by one, and
// the rules drop what arrives by them and is neither an answer nor for a published port. If
// ip_forward is turned on later, as engines do when they start, the interfaces stay on:
// they then belong to the program that turned it on. Turning it off switches every interface off, those
// of gangs as well: [KeepRules] and the next [Connect] switch on again what gangs need.

// openedPath is the file with the names of the interfaces that were switched on, one per
// line.
func openedPath(state string) string { return filepath.Join(state, "network.forward") }

// setSysctl writes a sysctl of the calling thread's network namespace.
func (h Host) setSysctl(key, value string) error {
	path := filepath.Join(h.Proc, "sys/net", key)
	if old, err := smallfile.String(path); err == nil && old == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		return fmt.Errorf("set %s to %s: %w", filepath.Join("net", key), value, err)
	}
	return nil
}

func forwardingKey(name string) string { return filepath.Join("ipv4/conf", name, "forwarding") }

// forwardsAll reports whether the host forwards by itself, between all interfaces.
func (h Host) forwardsAll() (bool, error) {
	n, err := smallfile.Int(filepath.Join(h.Proc, "sys/net/ipv4/ip_forward"))
	return n != 0, err
}

// interfacesToOpen returns the interfaces that have to forward for gangs alone: those that were
// switched on before, and the outer interfaces that are off.
func (h Host) interfacesToOpen(state string, outer []string) ([]string, error) {
	if is, err := h.forwardsAll(); is || err != nil {
		return nil, err
	}
	names, err := readOpened(state)
	if err != nil {
		return nil, err
	}
	for _, name := range outer {
		n, err := smallfile.Int(filepath.Join(h.Proc, "sys/net", forwardingKey(name)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err == nil && n == 0 && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func readOpened(state string) ([]string, error) {
	const most = 1 << 16
	data, err := smallfile.Read(openedPath(state), most)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(data)), err
}

// openInterfaces switches interfaces on. Before it does, it writes down which.
func (h Host) openInterfaces(state string, names []string) error {
	before, err := readOpened(state)
	if err != nil {
		return err
	}
	if !slices.Equal(before, names) {
		if err := writeOpened(state, names); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := h.setSysctl(forwardingKey(name), "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// openGangs switches on the interfaces of all gangs.
func (h Host) openGangs(host hostNetwork) error {
	for _, l := range host.links {
		if !isGangInterface(l) {
			continue
		}
		if err := h.setSysctl(forwardingKey(l.Attrs().Name), "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func writeOpened(state string, names []string) error {
	path := openedPath(state)
	if len(names) > 0 {
		return atomicfile.Write(path, []byte(strings.Join(names, "\n")+"\n"), 0o600, atomicfile.Options{FixedTemp: true})
	}
	for _, path := range []string{path, path + ".tmp"} { // the latter is left by a killed writer
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// closeInterfaces switches off what openInterfaces has switched on, unless ip_forward was
// turned on since.
func (h Host) closeInterfaces(state string) error {
	names, err := readOpened(state)
	if err != nil {
		return err
	}
	is, err := h.forwardsAll()
	if err != nil {
		return err
	}
	for _, name := range names {
		if is {
			break
		}
		if err := h.setSysctl(forwardingKey(name), "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return writeOpened(state, nil)
}
