package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/deviceguard"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Fixed numbers of NVIDIA's driver. All GPUs share the nodes with minors from firstShared on:
// nvidiactl, nvidia-modeset and others. A process can use a GPU only while it has the GPU's own
// node open, so the shared nodes stay open.
const (
	majorNVIDIA = 195
	firstShared = 248
	lastShared  = 255
)

// HostRules returns the rules of the device guard for these leases. Guarded are the nodes of all
// GPUs, also of those that appear later, the capability nodes of MIG, the graphics nodes of GPUs,
// and RDMA adapters that are leased exclusively. majors are those of the accelerators' drivers by
// name.
//
// A lease whose cgroup doesn't exist has no entry.
func (g Guard) HostRules(inv gpu.Inventory, majors map[string]uint32, leases []ledger.Lease, exempt []string) (deviceguard.Rules, error) {
	guarded, err := g.GuardedNumbers(inv, majors)
	if err != nil {
		return deviceguard.Rules{}, err
	}
	r := deviceguard.Rules{Guarded: guarded, Cgroups: map[uint64]deviceguard.Entry{}}
	for minor := uint32(firstShared); minor <= lastShared; minor++ {
		r.Open = append(r.Open, deviceguard.Number{Major: majorNVIDIA, Minor: minor})
	}
	for _, path := range exempt {
		id, err := g.Cgroups.ID(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the exempt unit doesn't run
		}
		if err != nil {
			return r, err
		}
		r.Cgroups[id] = deviceguard.Entry{Kind: deviceguard.Exempt}
	}
	for _, l := range leases {
		if l.Owner.Cgroup == "" {
			continue
		}
		path := l.Owner.Cgroup
		if outer := enclosingOuter(path); outer != "" {
			path = outer
		}
		id, err := g.Cgroups.ID(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return r, err
		}
		e := r.Cgroups[id] // a cgroup may have several leases
		e.Kind = deviceguard.Lease
		for _, d := range l.Devices {
			if nic, ok := inv.NIC(d); ok && inv.ExclusiveNICs {
				number, err := g.verbsNumber(nic)
				if err != nil {
					return r, err
				}
				e.Devices = append(e.Devices, number...)
			}
			e.Devices = append(e.Devices, leasedNumbers(inv, majors, d)...)
		}
		r.Cgroups[id] = e
	}
	return r, nil
}

// GuardedNumbers returns the nodes of the devices that are leased to one holder at a time: of all GPUs, also of those
// that appear later, with the capability nodes of MIG and the graphics nodes, and of RDMA adapters if these are leased
// exclusively.
func (g Guard) GuardedNumbers(inv gpu.Inventory, majors map[string]uint32) ([]deviceguard.Number, error) {
	all := []deviceguard.Number{{Major: majorNVIDIA, Minor: deviceguard.AnyMinor}}
	if major, ok := majors["nvidia-caps"]; ok {
		all = append(all, deviceguard.Number{Major: major, Minor: deviceguard.AnyMinor})
	}
	for _, one := range inv.GPUs {
		all = append(all, graphicsNumbers(one, majors)...)
	}
	if !inv.ExclusiveNICs {
		return all, nil
	}
	for _, n := range inv.NICs {
		number, err := g.verbsNumber(n)
		if err != nil {
			return nil, err
		}
		all = append(all, number...)
	}
	return all, nil
}

// HostGuarded reports whether the device guard is on.
func (g Guard) HostGuarded() (bool, error) {
	if g.Cgroups.Version != cgroup.V2 {
		return false, nil
	}
	host, err := deviceguard.Open(g.Cgroups.Root)
	if errors.Is(err, deviceguard.ErrOff) || errors.Is(err, deviceguard.ErrUnavailable) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, host.Close()
}

// leasedNumbers returns the guarded nodes of a leased GPU or slice.
func leasedNumbers(inv gpu.Inventory, majors map[string]uint32, d gpu.Device) (all []deviceguard.Number) {
	if minor, err := strconv.ParseUint(strings.TrimPrefix(d.Node, "nvidia"), 10, 8); err == nil {
		all = append(all, deviceguard.Number{Major: majorNVIDIA, Minor: uint32(minor)})
	}
	g, slice, ok := inv.Lookup(d.UUID)
	if !ok {
		return all
	}
	if slice == nil {
		return append(all, graphicsNumbers(*g, majors)...)
	}
	if major, ok := majors["nvidia-caps"]; ok {
		all = append(all, deviceguard.Number{Major: major, Minor: uint32(slice.GIMinor)}, deviceguard.Number{Major: major, Minor: uint32(slice.CIMinor)}) //nolint:gosec // minors
	}
	return all
}

// graphicsNumbers returns a GPU's nodes below /dev/dri.
func graphicsNumbers(g gpu.GPU, majors map[string]uint32) (all []deviceguard.Number) {
	major, ok := majors["drm"]
	if !ok {
		return nil
	}
	for _, d := range g.DRI {
		all = append(all, deviceguard.Number{Major: major, Minor: uint32(d.Minor)}) //nolint:gosec // minors
	}
	return all
}

// verbsNumber returns the node of an adapter through which processes use it, none if it has no such
// node.
func (g Guard) verbsNumber(n gpu.NIC) ([]deviceguard.Number, error) {
	if n.Uverbs == "" {
		return nil, nil
	}
	file := g.Host.SysPath("class/infiniband_verbs", n.Uverbs, "dev")
	text, err := smallfile.String(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var d deviceguard.Number
	if _, err := fmt.Sscanf(text, "%d:%d", &d.Major, &d.Minor); err != nil {
		return nil, fmt.Errorf("read %s: %q is no device number", file, text)
	}
	return []deviceguard.Number{d}, nil
}
