package berth

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/cdi/foreign"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// RefreshCDI reads the host's CDI specs, with read, and keeps the list of other
// vendors' devices, unless the list that there is fits the specs. It is part of
// berth discover.
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
	discovered := runDiscover(ctx, n.config) // a node without a driver has CDI devices all the same
	if r, err = foreign.Load(n.config.CDIPath(), n.config.Host.CDI); err != nil && discovered != nil {
		err = discovered
	}
	return r, err
}

// CheckCDI says why no container can be given a device of the registry, whatever
// policy allows; nil if one can.
func (n *Node) CheckCDI(r foreign.Registry, name string) error {
	majors, err := gpu.ReadMajors(n.config.GPUHost())
	if err == nil {
		_, err = resolveCDI(r, []string{name}, majors)
	}
	return err
}

// resolveCDI says what a container of other vendors' devices needs.
func resolveCDI(r foreign.Registry, names []string, majors []gpu.Major) (edits.Edits, error) {
	e, err := r.Resolve(names)
	if err != nil {
		return edits.Edits{}, err
	}
	return e, checkNotLeased(names, e.Nodes, majors)
}

// checkNotLeased refuses nodes of the drivers whose devices berth leases itself, GPUs and
// slices: by another name they would be handed out past the ledger. NVIDIA's tools
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

// withCDI is the inventory for a request that names CDI devices. A name that no
// spec defines is an error that says what may be the reason.
func (n *Node) withCDI(ctx context.Context, ask request.Request) (gpu.Inventory, error) {
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
		return gpu.Inventory{CDI: inv.CDI}, nil // the node need not have a GPU
	}
	return inv, err
}
