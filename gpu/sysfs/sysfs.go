// Package sysfs reads from /sys where a node's devices sit: its NUMA nodes, the
// CPUs near a PCI device, how far two PCI devices are apart, and the RDMA devices.
//
// A tree that isn't there (no InfiniBand, a hidden /sys) is empty and no error; what isn't known is
// -1 or "". It doesn't access the devices themselves. Paths of a container must not be passed in.
package sysfs

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// NUMA lists the memory nodes of the machine by id. Nodes without CPUs
// (memory of accelerators) are listed too.
func NUMA(h gpu.Host) ([]gpu.NUMANode, error) {
	root := h.SysPath("devices/system/node")
	names, err := smallfile.Names(root)
	if err != nil {
		return nil, err
	}
	var nodes []gpu.NUMANode
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, "node")
		id, err := strconv.ParseUint(digits, 10, 20)
		if !ok || err != nil {
			continue
		}
		cpus, err := cpuList(filepath.Join(root, name, "cpulist"))
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, gpu.NUMANode{ID: int(id), CPUs: cpus})
	}
	slices.SortFunc(nodes, func(a, b gpu.NUMANode) int { return cmp.Compare(a.ID, b.ID) })
	return nodes, nil
}

// Device is one PCI device.
type Device struct {
	// Address in sysfs form, and "" for the zero Device, which isn't there.
	Address string
	NUMA    int    // -1 if unknown
	CPUs    string // near it, in list format; "" if unknown
	// Route is the way to the device: host bridge, bridges, itself.
	Route []string
}

// PCI looks up a device by its address. One that isn't there has nothing but
// its address and NUMA -1.
func PCI(h gpu.Host, address string) (Device, error) {
	d := Device{Address: address, NUMA: -1}
	if !isPCIAddress(address) {
		return d, nil
	}
	link := h.SysPath("bus/pci/devices", address)
	real, err := resolveLinks(link)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return d, err
	}
	d.Route = pciRoute(real)
	if d.NUMA, err = optionalInt(filepath.Join(real, "numa_node")); err != nil {
		return d, err
	}
	d.CPUs, err = cpuList(filepath.Join(real, "local_cpulist"))
	return d, err
}

// NVSwitches counts the NVSwitch devices: bridges of NVIDIA's that aren't
// bridges of PCI.
func NVSwitches(h gpu.Host) (int, error) {
	const vendor, class = "0x10de", "0x068000" // PCI ids: NVIDIA; bridge, other
	root := h.SysPath("bus/pci/devices")
	names, err := smallfile.Names(root)
	if err != nil {
		return 0, err
	}
	count := 0
	for _, name := range names {
		v, err := readOptional(filepath.Join(root, name, "vendor"))
		if err != nil {
			return 0, err
		}
		c, err := readOptional(filepath.Join(root, name, "class"))
		if err != nil {
			return 0, err
		}
		if v == vendor && c == class {
			count++
		}
	}
	return count, nil
}

// resolveLinks follows the links of /sys, which are the kernel's. The result is trusted as much as
// the link itself.
func resolveLinks(path string) (string, error) {
	return filepath.EvalSymlinks(path) //nolint:forbidigo // a trusted tree
}

// readOptional reads a small file; one that isn't there, or whose driver doesn't
// give the value (the rate of a port that is down), is "".
func readOptional(path string) (string, error) {
	text, err := smallfile.String(path)
	if isUnknown(err) {
		return "", nil
	}
	return text, err
}

// optionalInt reads a file with a number. It is -1 where readOptional returns "".
func optionalInt(path string) (int, error) {
	n, err := smallfile.Int(path)
	if isUnknown(err) {
		return -1, nil
	}
	return n, err
}

func isUnknown(err error) bool {
	for _, e := range []error{fs.ErrNotExist, unix.EINVAL, unix.EIO, unix.ENODATA, unix.ENODEV, unix.EOPNOTSUPP} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
