package berth

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/gpu/requirement"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/gpu/sysfs"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// splitDevices splits leased devices into GPUs and slices, RDMA adapters, and other vendors' devices.
func splitDevices(leased []gpu.Device) (gpus, nics, named []gpu.Device) {
	for _, d := range leased {
		switch {
		case d.IsCDI():
			named = append(named, d)
		case d.IsNIC():
			if !slices.Contains(nics, d) { // several parts of a gang can share an adapter
				nics = append(nics, d)
			}
		default:
			gpus = append(gpus, d)
		}
	}
	return gpus, nics, named
}

// gatherGPUs adds to the plan the edits for leased GPUs. It returns the function that
// writes the loader's cache into the root and returns the edits for the driver's files, for
// the view of the driver's state and for the sockets of its services.
func (n *Node) gatherGPUs(ctx context.Context, p *Plan, spec *specs.Spec, root *os.File, lease ledger.Lease) (files func() (cdi.Prepared, error), err error) {
	gpus, _, _ := splitDevices(lease.Devices)
	env := environmentOf(spec)
	if p.Selection, err = n.readSelection(env, lease.Request); err != nil {
		return nil, err
	}
	s, dir, err := n.loadDriver(ctx, p.Selection.Capabilities)
	if err != nil {
		return nil, err
	}
	if time.Since(lease.Since) > freshFor { // else Acquire has just checked the PCI bus
		s.Inventory.GPUs = sysfs.MarkLost(n.config.GPUHost(), s.Inventory.GPUs)
	}
	if err := requirement.Check(env, s.Inventory, gpus); err != nil {
		return nil, err
	}
	common, err := n.mountShared(ctx, s)
	if err != nil {
		return nil, err
	}
	with, err := n.addGPUEdits(p, s, lease, common)
	return func() (cdi.Prepared, error) { return cdi.PrepareRoot(root, spec, dir, n.config.TaskState(), with) }, err
}

// addGPUEdits adds to the plan the edits for leased GPUs other than their nodes and the
// driver's files. It returns the edits that depend on the container's root.
func (n *Node) addGPUEdits(p *Plan, s snapshot.Snapshot, lease ledger.Lease, common shared.Dir) (cdi.RootOptions, error) {
	gpus, nics, _ := splitDevices(lease.Devices)
	p.Inventory, p.Accelerators = s.Inventory, s.Key.Majors
	p.Selection.Features = n.config.Policy.addNCCLFeatures(s.Inventory, p.Selection.Features, nics)
	source := n.newViews(s.Taken)
	source.DryRun = p.dryRun
	views, err := source.Edits(s.Inventory, gpus, p.Selection)
	if err != nil {
		return cdi.RootOptions{}, err
	}
	proc, err := cdi.ProcEdits(n.config.GPUHost(), s.Inventory, gpus, p.Selection)
	if err != nil {
		return cdi.RootOptions{}, err
	}
	services, err := cdi.Services(n.config.GPUHost(), p.Selection)
	if err != nil {
		return cdi.RootOptions{}, err
	}
	resources, err := n.resourceEdits(common, p.dryRun)
	if err != nil {
		return cdi.RootOptions{}, err
	}
	with := cdi.RootOptions{Compat: cdi.AllowsCompat(gpus, p.Selection), Mounts: slices.Concat(views.Mounts, services.Mounts), Shared: common}
	views.Mounts, services.Mounts = nil, nil
	p.Files, err = edits.Merge(p.Files, resources, proc, views, services)
	return with, err
}

func environmentOf(spec *specs.Spec) []string {
	if spec.Process == nil {
		return nil
	}
	return spec.Process.Env
}

// readSelection returns the driver capabilities that the environment chooses and the
// features of the lease's request. What policy doesn't allow is an error.
func (n *Node) readSelection(env []string, words string) (cdi.Selection, error) {
	caps, err := n.config.Policy.chooseCapabilities(env)
	if err != nil {
		return cdi.Selection{}, err
	}
	r, err := request.Parse(words)
	if err != nil {
		return cdi.Selection{}, fmt.Errorf("the lease's %w", err)
	}
	if err := n.config.Policy.checkRequest(r); err != nil {
		return cdi.Selection{}, err
	}
	return cdi.Selection{Capabilities: caps, Features: r.Features()}, nil
}

func (n *Node) newViews(taken time.Time) cdi.Views {
	return cdi.Views{
		State: n.config.TaskState(),
		Epoch: taken.UTC().Format(time.RFC3339Nano), InUse: n.inUse,
	}
}

// inUse reports whether there is a lease for which each name is the lease's id or the UUID of one of its
// devices. It is true if the ledger can't be read.
func (n *Node) inUse(names []string) bool {
	leases, err := n.Leases()
	return err != nil || slices.ContainsFunc(leases, func(l ledger.Lease) bool {
		return !slices.ContainsFunc(names, func(name string) bool {
			return name != l.ID && !slices.ContainsFunc(l.Devices, func(d gpu.Device) bool { return d.UUID == name })
		})
	})
}
