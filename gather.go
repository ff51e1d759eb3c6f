package berth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi"
	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/gpu/requirement"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/gpu/sysfs"
	"github.com/berth-gpu/berth/internal/netdev"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// splitDevices tells leased GPUs and slices from RDMA adapters and from other vendors' devices,
// of which it returns the names.
func splitDevices(leased []gpu.Device) (gpus, nics []gpu.Device, named []string) {
	for _, d := range leased {
		switch {
		case d.IsCDI():
			named = append(named, d.UUID)
		case d.IsNIC():
			if !slices.Contains(nics, d) { // several parts of a gang can have one
				nics = append(nics, d)
			}
		default:
			gpus = append(gpus, d)
		}
	}
	return gpus, nics, named
}

// gatherGPUs fills in the plan for leased GPUs: what the container chooses of the driver.
// It returns how the driver's files come into the root, with what the container sees
// of the driver's state and the sockets of its services.
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
	if time.Since(lease.Since) > fresh { // else Acquire has just looked for them on the PCI bus
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
	return func() (cdi.Prepared, error) { return cdi.PrepareRoot(root, spec, dir, n.config.State, with) }, err
}

// addGPUEdits adds to the plan what the wish brings beside the leased GPUs' nodes and the
// driver's files. It returns what may be left out, for the container's root decides.
func (n *Node) addGPUEdits(p *Plan, s snapshot.Snapshot, lease ledger.Lease, common shared.Dir) (cdi.RootOptions, error) {
	gpus, nics, _ := splitDevices(lease.Devices)
	p.Inventory, p.Accelerators = s.Inventory, s.Key.Majors
	p.Selection.Features = n.config.Policy.addCompanions(s.Inventory, p.Selection.Features, nics)
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
	room, err := n.resourceEdits(common, p.dryRun)
	if err != nil {
		return cdi.RootOptions{}, err
	}
	with := cdi.RootOptions{Compat: cdi.AllowsCompat(gpus, p.Selection), Mounts: slices.Concat(views.Mounts, services.Mounts), Shared: common}
	views.Mounts, services.Mounts = nil, nil
	p.Files, err = edits.Merge(p.Files, room, proc, views, services)
	return with, err
}

func environmentOf(spec *specs.Spec) []string {
	if spec.Process == nil {
		return nil
	}
	return spec.Process.Env
}

// mountShared mounts the directory of the driver's files in this mount namespace. Where the
// machine can't mount the directory, containers get the files of the directory itself.
func (n *Node) mountShared(ctx context.Context, s snapshot.Snapshot) (shared.Dir, error) {
	d := n.config.SharedFiles()
	if s.OwnedFiles != "" {
		return shared.Dir{Source: d.Source}, nil
	}
	return d.MountIfSupported(ctx) // snapshots of older versions have no OwnedFiles
}

// readSelection reads what the environment chooses and the request asks for, within policy.
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
		State: n.config.State,
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

// loadDriver returns the snapshot and its directory of driver files, after a check of the files that
// containers with these capabilities get. If they were changed since discovery, the directory is taken out
// of use, which makes the snapshot stale, and both are made again. The result of a check is kept for the
// duration of fresh.
func (n *Node) loadDriver(ctx context.Context, caps gpu.Capabilities) (snapshot.Snapshot, driver.Dir, error) {
	n.loading.Lock()
	defer n.loading.Unlock()
	s, err := n.loadSnapshot(ctx)
	if err != nil {
		return s, driver.Dir{}, err
	}
	if n.loaded.Home == s.DriverDir && n.loadedFor == caps && time.Since(n.loadedAt) < fresh {
		return s, n.loaded, nil
	}
	s, dir, err := n.loadDriverFiles(ctx, s, caps)
	if err == nil {
		n.loaded, n.loadedFor, n.loadedAt = dir, caps, time.Now()
	}
	return s, dir, err
}

func (n *Node) loadDriverFiles(ctx context.Context, s snapshot.Snapshot, caps gpu.Capabilities) (snapshot.Snapshot, driver.Dir, error) {
	dir, err := driver.Load(s.DriverDir, caps)
	if !errors.Is(err, driver.ErrDamaged) {
		return s, dir, err
	}
	if err := n.setAside(ctx, s.DriverDir, caps); err != nil {
		return s, driver.Dir{}, err
	}
	if s, err = n.loadSnapshot(ctx); err != nil {
		return s, driver.Dir{}, err
	}
	dir, err = driver.Load(s.DriverDir, caps)
	return s, dir, err
}

// setAside takes the directory out of use unless somebody just made it anew.
func (n *Node) setAside(ctx context.Context, path string, caps gpu.Capabilities) error {
	held, err := n.config.lockDiscovery(ctx)
	if err != nil {
		return err
	}
	if _, err = driver.Load(path, caps); errors.Is(err, driver.ErrDamaged) {
		err = driver.SetAside(path)
	}
	held.Close() // before the next lock, whose holder may wait for a discovery
	n.reading.Lock()
	n.read = nil
	n.reading.Unlock()
	return err
}

// MountFiles mounts the driver's files for containers in the caller's mount namespace, unless they
// are. [Node.Prepare] does it too; a launcher that makes a mount namespace for its containers calls
// MountFiles before.
func (n *Node) MountFiles(ctx context.Context) error {
	s, err := n.loadSnapshot(ctx)
	if err != nil {
		return err
	}
	_, err = n.mountShared(ctx, s)
	return err
}

// Programs are those of the driver, which can be run in a container that holds a
// lease and has this environment: the path there, and the file's on the host.
func (n *Node) Programs(ctx context.Context, env []string) (map[string]string, error) {
	caps, err := n.config.Policy.chooseCapabilities(env)
	if err != nil {
		return nil, err
	}
	_, dir, err := n.loadDriver(ctx, caps)
	if err != nil {
		return nil, err
	}
	return cdi.Programs(dir), nil
}

// gatherCDI fills in the plan for other vendors' devices.
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

// awaitNetDevices makes sure that network devices can come into the container, before there
// is one: they are there, or come back within moments from the container that had
// them, and the spec has a network namespace to move them into.
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
