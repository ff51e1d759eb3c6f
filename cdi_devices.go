package berth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/cdi/foreign"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/netdev"
)

// RefreshCDI reads the host's CDI specs by calling read, and stores the list of other
// vendors' devices. If the stored list fits the specs, read isn't called. RefreshCDI is
// part of berth discover.
func RefreshCDI(ctx context.Context, c Config, read func(dirs []string) foreign.Registry) (foreign.Registry, error) {
	held, err := c.lockDiscovery(ctx)
	if err != nil {
		return foreign.Registry{}, err
	}
	defer held.Close() // nothing was written
	r, err := foreign.Load(c.CDIPath(), c.Host.CDI)
	if !errors.Is(err, foreign.ErrStale) {
		return r, err
	}
	stamp, err := foreign.Stamp(c.Host.CDI) // before reading: a change meanwhile makes the list stale
	if err != nil {
		return foreign.Registry{}, err
	}
	r = read(c.Host.CDI)
	return r, foreign.Save(c.CDIPath(), stamp, r)
}

// ListCDIDevices lists the CDI devices of other vendors that the host's specs define now.
func (n *Node) ListCDIDevices(ctx context.Context) (foreign.Registry, error) {
	r, err := foreign.Load(n.config.CDIPath(), n.config.Host.CDI)
	if !errors.Is(err, foreign.ErrStale) {
		return r, err
	}
	discovered := runDiscover(ctx, n.config) // its error doesn't count if the list fits: a node without a driver can have CDI devices
	if r, err = foreign.Load(n.config.CDIPath(), n.config.Host.CDI); err != nil && discovered != nil {
		err = discovered
	}
	return r, err
}

// CheckCDI returns an error if no container can be given the named device of the
// registry, whatever policy allows.
func (n *Node) CheckCDI(r foreign.Registry, name string) error {
	majors, err := gpu.ReadMajors(n.config.GPUHost())
	if err == nil {
		_, err = resolveCDI(r, []string{name}, majors)
	}
	return err
}

// resolveCDI returns the edits for other vendors' devices. A device of a driver whose
// devices berth leases as GPUs is an error.
func resolveCDI(r foreign.Registry, names []string, majors []gpu.Major) (edits.Edits, error) {
	e, err := r.Resolve(names)
	if err != nil {
		return edits.Edits{}, err
	}
	return e, checkNotLeased(names, e.Nodes, majors)
}

// checkNotLeased refuses nodes of the drivers whose devices berth leases as GPUs and
// slices: under a CDI name they would reach a container without a lease. NVIDIA's tools
// write such specs on every server.
func checkNotLeased(names []string, nodes []edits.Node, majors []gpu.Major) error {
	for _, n := range nodes {
		for _, m := range majors {
			if n.Type == "c" && n.Major == int64(m.Number) && gpu.IsLeased(m.Name) {
				return fmt.Errorf("CDI device %s: its node %s belongs to %s, whose devices are leased as GPUs: ask for those",
					strings.Join(names, ", "), n.Path, m.Name)
			}
		}
	}
	return nil
}

// inventoryWithCDI returns the inventory for a request that names CDI devices. A name that
// no spec defines is an error that gives the likely reason.
func (n *Node) inventoryWithCDI(ctx context.Context, ask request.Request) (gpu.Inventory, error) {
	names := ask.CDI()
	r, err := n.ListCDIDevices(ctx)
	if err != nil {
		return gpu.Inventory{}, err
	}
	for _, name := range names {
		if _, _, err := r.Find(name); err != nil {
			return gpu.Inventory{}, err
		}
	}
	inv, err := n.readInventory(ctx)
	inv.CDI = r.Names()
	if err != nil && !ask.GPUs() && ask.NICs() == "" {
		return gpu.Inventory{CDI: inv.CDI}, nil // the request needs no GPU
	}
	return inv, err
}

// gatherCDI adds to the plan the edits for other vendors' devices.
func (n *Node) gatherCDI(ctx context.Context, p *Plan, spec *specs.Spec, names []string) error {
	r, err := n.ListCDIDevices(ctx)
	if err != nil {
		return err
	}
	devices, err := resolveCDI(r, names, p.Majors)
	if err != nil {
		return err
	}
	if !p.dryRun {
		if err := awaitNetDevices(ctx, spec, devices.NetDevices); err != nil {
			return err
		}
	}
	p.Files, err = edits.Merge(p.Files, devices)
	return err
}

// awaitNetDevices checks, before the container is created, that network devices can be
// moved into it: the spec has a network namespace of its own, and the devices are on the
// host. It waits a moment for devices that return from a container that has just ended.
func awaitNetDevices(ctx context.Context, spec *specs.Spec, names map[string]string) error {
	if len(names) == 0 {
		return nil
	}
	devices := netdev.SortDevices(names)
	if spec.Linux == nil || !slices.ContainsFunc(spec.Linux.Namespaces, func(s specs.LinuxNamespace) bool { return s.Type == specs.NetworkNamespace }) {
		return fmt.Errorf("network device %s: %w", devices[0].Host, netdev.ErrShared)
	}
	return netdev.AwaitDevices(ctx, devices)
}
