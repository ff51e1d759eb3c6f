// Package discover makes an inventory of a node: it combines the report of the driver's library with
// sysfs and procfs: PCI topology, NICs, MIG capabilities, and the device nodes of graphics and
// features.
//
// It reads only. Loading modules and making nodes is package gpu/nodes; keeping
// the result is package gpu/snapshot.
package discover

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/gpu/sysfs"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// Inventory reads the node. GPUs that can't be read, and GPUs that the kernel module knows and the
// library doesn't list, are listed as lost. On an error there is no inventory; the error Is
// [gpu.ErrNoDriver] if there is no driver.
func Inventory(ctx context.Context, source gpu.Source, h gpu.Host) (gpu.Inventory, error) {
	report, err := source.Read(ctx)
	if err != nil {
		return gpu.Inventory{}, err
	}
	f, err := readFacts(h)
	if err != nil {
		return gpu.Inventory{}, err
	}
	gpus := completeGPUs(report.GPUs, f.driver)
	fillCapabilities(gpus, f.capabilities)
	places, err := locateGPUs(h, gpus)
	if err != nil {
		return gpu.Inventory{}, err
	}
	for i := range gpus {
		gpus[i].NUMA, gpus[i].CPUs = places[i].NUMA, places[i].CPUs
		if gpus[i].DRI, err = sysfs.DRI(h, gpus[i].PCI); err != nil {
			return gpu.Inventory{}, err
		}
	}
	return gpu.Inventory{
		Hostname: f.hostname, Driver: driverOf(report.Driver, f.version), GPUs: gpus,
		Links: linkPairs(places, report.NVLinks, len(f.numa)), NICs: measureNICs(f.nics, places, len(f.numa)),
		NVSwitches: f.switches, NUMA: f.numa, FeatureNodes: f.featureNodes,
	}, nil
}

// facts are what sysfs and procfs of the host say.
type facts struct {
	hostname     string
	version      string
	driver       []driver.GPU
	capabilities []driver.Capability
	numa         []gpu.NUMANode
	nics         []sysfs.NIC
	switches     int
	featureNodes []gpu.FeatureNode
}

func readFacts(h gpu.Host) (f facts, err error) {
	if f.hostname, err = smallfile.String(h.ProcPath("sys/kernel/hostname")); err != nil {
		return f, err
	}
	if f.version, err = driver.Version(h); err != nil {
		return f, err
	}
	if f.driver, err = driver.GPUs(h); err != nil {
		return f, err
	}
	if f.capabilities, err = driver.Capabilities(h); err != nil {
		return f, err
	}
	if f.numa, err = sysfs.NUMA(h); err != nil {
		return f, err
	}
	if f.nics, err = sysfs.NICs(h); err != nil {
		return f, err
	}
	if f.switches, err = sysfs.NVSwitches(h); err != nil {
		return f, err
	}
	f.featureNodes, err = listFeatureNodes(h)
	return f, err
}

// driverOf returns the reported driver with the kernel module's version, which snapshots are
// compared with.
func driverOf(reported gpu.Driver, module string) gpu.Driver {
	reported.Version = cmp.Or(module, reported.Version)
	return reported
}

// completeGPUs gives lost GPUs the identity that the kernel module knows, and adds those that the
// library didn't list. The library counts GPUs in the order of their addresses, so GPUs without an
// address get the unused addresses in that order.
func completeGPUs(reported []gpu.GPU, known []driver.GPU) []gpu.GPU {
	gpus := slices.Clone(reported)
	free := findUnclaimed(reported, known)
	for i := range gpus {
		gpus[i].Index = i
		switch {
		case gpus[i].PCI != "":
			if k := slices.IndexFunc(known, func(d driver.GPU) bool { return d.PCI == gpus[i].PCI }); k >= 0 {
				fillIdentity(&gpus[i], known[k])
			}
		case len(free) > 0:
			fillIdentity(&gpus[i], free[0])
			free = free[1:]
		}
	}
	for _, d := range free {
		g := gpu.GPU{Index: len(gpus), Minor: -1, NUMA: -1, Lost: "not reported by NVML"}
		fillIdentity(&g, d)
		gpus = append(gpus, g)
	}
	return gpus
}

func findUnclaimed(reported []gpu.GPU, known []driver.GPU) []driver.GPU {
	return slices.DeleteFunc(slices.Clone(known), func(d driver.GPU) bool {
		return slices.ContainsFunc(reported, func(g gpu.GPU) bool { return g.PCI == d.PCI })
	})
}

// fillIdentity fills in from the kernel module what the library didn't report of a GPU's identity.
func fillIdentity(g *gpu.GPU, d driver.GPU) {
	g.PCI = d.PCI
	g.Model = cmp.Or(g.Model, d.Model)
	if g.Minor < 0 {
		g.Minor = d.Minor
	}
	if g.UUID == "" || strings.HasPrefix(g.UUID, "LOST-") {
		g.UUID = cmp.Or(d.UUID, "LOST-"+d.PCI)
	}
}

// fillCapabilities fills in the minors of the slices' capability nodes.
func fillCapabilities(gpus []gpu.GPU, caps []driver.Capability) {
	minors := map[string]int{}
	for _, c := range caps {
		minors[c.Name] = c.Minor
	}
	find := func(name string) int {
		if minor, ok := minors[name]; ok {
			return minor
		}
		return -1
	}
	for i := range gpus {
		g := &gpus[i]
		g.Slices = slices.Clone(g.Slices)
		for k := range g.Slices {
			s := &g.Slices[k]
			s.GIMinor, s.CIMinor = find(driver.GI(g.Minor, s.GI)), find(driver.CI(g.Minor, s.GI, s.CI))
		}
	}
}

func locateGPUs(h gpu.Host, gpus []gpu.GPU) ([]sysfs.Device, error) {
	places := make([]sysfs.Device, len(gpus))
	for i, g := range gpus {
		var err error
		if places[i], err = sysfs.PCI(h, g.PCI); err != nil {
			return nil, err
		}
	}
	return places, nil
}

// linkPairs returns one link for each pair of GPUs, with the reported NVLinks.
func linkPairs(places []sysfs.Device, nvlinks []gpu.Link, nodes int) []gpu.Link {
	type pair struct{ a, b int }
	count := map[pair]int{}
	for _, l := range nvlinks {
		count[pair{l.A, l.B}] = l.NVLinks
	}
	var all []gpu.Link
	for a := range places {
		for b := a + 1; b < len(places); b++ {
			all = append(all, gpu.Link{
				A: a, B: b, NVLinks: count[pair{a, b}], PCIe: sysfs.Path(places[a], places[b], nodes),
			})
		}
	}
	return all
}

// measureNICs computes the path from each NIC to each GPU and to each other NIC.
func measureNICs(found []sysfs.NIC, places []sysfs.Device, nodes int) []gpu.NIC {
	var all []gpu.NIC
	for i, n := range found {
		for _, p := range places {
			n.Near = append(n.Near, sysfs.Path(n.Device, p, nodes))
		}
		for k, other := range found {
			var path gpu.Path
			if k != i {
				path = sysfs.Path(n.Device, other.Device, nodes)
			}
			n.Peers = append(n.Peers, path)
		}
		all = append(all, n.NIC)
	}
	return all
}
