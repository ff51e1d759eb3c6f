package berth

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/cdi/foreign"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/netdev"
	"github.com/berth-gpu/berth/isolation/deviceguard"
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
// registry, whatever policy allows: it asks for what berth can't do, or brings a node of a
// GPU or an RDMA adapter that only a lease of that device opens.
func (n *Node) CheckCDI(r foreign.Registry, name string) error {
	e, err := r.Resolve([]string{name})
	if err != nil {
		return err
	}
	inv, majors, err := n.readGuarded()
	if err != nil {
		return err
	}
	guarded, err := n.guard.GuardedNumbers(inv, majors)
	if err != nil {
		return err
	}
	return checkNotGuarded(name, e.Nodes, guarded)
}

// checkNotGuarded refuses a CDI device that would open the guarded nodes without a lease of the
// devices that they belong to. NVIDIA's tools write such specs on every server.
func checkNotGuarded(name string, nodes []edits.Node, guarded []deviceguard.Number) error {
	for _, n := range nodes {
		if n.Type == "c" && slices.ContainsFunc(guarded, func(g deviceguard.Number) bool {
			return n.Major == int64(g.Major) && (g.Minor == deviceguard.AnyMinor || n.Minor == int64(g.Minor))
		}) {
			return fmt.Errorf("CDI device %s: its node %s (%s) belongs to a GPU or an RDMA NIC, which berth leases: request that instead (berth run --gpus, --nics)",
				name, n.Path, n.Number())
		}
	}
	return nil
}

// inventoryWithCDI returns the inventory for a request that names CDI devices. A name that
// no spec defines is an error that gives the likely reason, and so is a device that no container can be given.
func (n *Node) inventoryWithCDI(ctx context.Context, ask request.Request) (gpu.Inventory, error) {
	r, err := n.ListCDIDevices(ctx)
	if err != nil {
		return gpu.Inventory{}, err
	}
	inv, noGPUs := n.readInventory(ctx) // renews the snapshot, by which CheckCDI knows the nodes of GPUs
	for _, name := range ask.CDI() {
		if err := n.CheckCDI(r, name); err != nil {
			return gpu.Inventory{}, err
		}
	}
	inv.CDI = r.Devices()
	if noGPUs != nil && !ask.GPUs() && ask.NICs() == "" {
		return gpu.Inventory{CDI: inv.CDI}, nil
	}
	return inv, noGPUs
}

// gatherCDI adds to the plan the edits for other vendors' devices. A device that has other nodes than when it was
// leased is an error: another lease may have them.
func (n *Node) gatherCDI(ctx context.Context, p *Plan, spec *specs.Spec, leased []gpu.Device) error {
	r, err := n.ListCDIDevices(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, d := range leased {
		names = append(names, d.UUID)
		if err := n.CheckCDI(r, d.UUID); err != nil {
			return err
		}
		now, err := r.Device(d.UUID)
		recorded := d.Nodes != "" || d.CommonNodes != "" // a lease of an earlier version has no nodes
		if err == nil && recorded && now != d && !p.dryRun {
			err = fmt.Errorf("CDI device %s: its device nodes have changed since it was leased; a new lease brings the new ones", d.UUID)
		}
		if err != nil {
			return err
		}
	}
	devices, err := r.Resolve(names)
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
