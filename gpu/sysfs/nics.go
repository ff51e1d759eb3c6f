package sysfs

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// NIC is one RDMA device and its place in the PCI tree. The device is zero for
// one that isn't on PCI (rxe, siw).
type NIC struct {
	gpu.NIC // Near unset
	Device  Device
}

// NICs lists the RDMA devices in the order people count them: mlx5_2 before mlx5_10.
func NICs(h gpu.Host) ([]NIC, error) {
	root := h.SysPath("class/infiniband")
	names, err := smallfile.Names(root)
	if err != nil {
		return nil, err
	}
	uverbs, err := verbsNodes(h)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(names, byNumber)
	var all []NIC
	for _, name := range names {
		nic, err := readNIC(h, root, name)
		if err != nil {
			return nil, err
		}
		nic.Uverbs = uverbs[name]
		all = append(all, nic)
	}
	return clearSharedGUIDs(all), nil
}

// clearSharedGUIDs clears GUIDs that several NICs have: they don't identify a NIC.
func clearSharedGUIDs(all []NIC) []NIC {
	count := map[string]int{}
	for _, n := range all {
		count[n.GUID]++
	}
	for i := range all {
		if count[all[i].GUID] > 1 {
			all[i].GUID = ""
		}
	}
	return all
}

func readNIC(h gpu.Host, root, name string) (NIC, error) {
	nic := NIC{NIC: gpu.NIC{Name: name, NUMA: -1}, Device: Device{NUMA: -1}}
	dir := filepath.Join(root, name)
	guid, err := readOptional(filepath.Join(dir, "node_guid"))
	if err != nil {
		return nic, err
	}
	if isGUID(guid) {
		nic.GUID = guid
	}
	if nic.Ports, err = readPorts(filepath.Join(dir, "ports")); err != nil {
		return nic, err
	}
	if nic.Netdevs, err = smallfile.Names(filepath.Join(dir, "device/net")); err != nil {
		return nic, err
	}
	real, err := resolveLinks(filepath.Join(dir, "device"))
	if errors.Is(err, fs.ErrNotExist) {
		return nic, nil
	}
	if err != nil {
		return nic, err
	}
	if address := filepath.Base(real); isPCIAddress(address) {
		nic.PCI = address
		nic.Device, err = PCI(h, address)
		nic.NUMA = nic.Device.NUMA
	}
	return nic, err
}

func readPorts(dir string) ([]gpu.Port, error) {
	names, err := smallfile.Names(dir)
	if err != nil {
		return nil, err
	}
	var all []gpu.Port
	for _, name := range names {
		n, err := strconv.ParseUint(name, 10, 16)
		if err != nil {
			continue
		}
		p, err := readPort(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		p.Number = int(n)
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b gpu.Port) int { return cmp.Compare(a.Number, b.Number) })
	return all, nil
}

func readPort(dir string) (p gpu.Port, err error) {
	if p.LinkLayer, err = readOptional(filepath.Join(dir, "link_layer")); err != nil {
		return p, err
	}
	if p.Rate, err = readOptional(filepath.Join(dir, "rate")); err != nil {
		return p, err
	}
	if p.State, err = readState(dir); err != nil {
		return p, err
	}
	p.GIDs, err = readGIDs(dir)
	return p, err
}

// verbsNodes maps the name of an RDMA device to its node's below /dev/infiniband.
func verbsNodes(h gpu.Host) (map[string]string, error) {
	root := h.SysPath("class/infiniband_verbs")
	names, err := smallfile.Names(root)
	if err != nil {
		return nil, err
	}
	nodes := map[string]string{}
	for _, name := range names {
		if !strings.HasPrefix(name, "uverbs") {
			continue
		}
		device, err := readOptional(filepath.Join(root, name, "ibdev"))
		if err != nil {
			return nil, err
		}
		nodes[device] = name
	}
	return nodes, nil
}

// byNumber orders names by the number at their end, if the rest is the same.
func byNumber(a, b string) int {
	aRest, aNumber := cutNumber(a)
	bRest, bNumber := cutNumber(b)
	return cmp.Or(cmp.Compare(aRest, bRest), cmp.Compare(aNumber, bNumber), cmp.Compare(a, b))
}

func cutNumber(s string) (string, int) {
	rest := strings.TrimRight(s, "0123456789")
	n, err := strconv.Atoi(s[len(rest):])
	if err != nil {
		return s, -1 // no number, or one too long to count
	}
	return rest, n
}
