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
	"github.com/berth-gpu/berth/internal/netdev"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// splitDevices tells leased GPUs and slices from RDMA adapters and from other vendors' devices,
// of which it returns the names.
func splitDevices(leased []gpu.Device) (gpus, nics []gpu.Device, named []string) {
	for _, d := range leased {
		switch {
		case d.CDI():
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
	gpus, nics, _ := splitDevices(lease.Devices)
	var env []string
	if spec.Process != nil {
		env = spec.Process.Env
	}
	if p.Wish, err = n.readWish(env, lease.Request); err != nil {
		return nil, err
	}
	s, dir, err := n.loadDriver(ctx, p.Wish.Capabilities)
	if err != nil {
		return nil, err
	}
	p.Inventory, p.Accelerators = s.Inventory, s.Key.Majors
	p.Wish.Features = n.config.Policy.addCompanions(s.Inventory, p.Wish.Features, nics)
	if err := requirement.Check(env, s.Inventory, gpus); err != nil {
		return nil, err
	}
	views, err := n.newViews(s.Taken).Edits(s.Inventory, gpus, p.Wish)
	if err != nil {
		return nil, err
	}
	proc, err := cdi.ProcEdits(n.config.GPUHost(), s.Inventory, gpus, p.Wish)
	if err != nil {
		return nil, err
	}
	services, err := cdi.Services(n.config.GPUHost(), p.Wish)
	if err != nil {
		return nil, err
	}
	common, err := n.mountShared(ctx, s)
	if err != nil {
		return nil, err
	}
	room, err := n.resourceEdits(common)
	if err != nil {
		return nil, err
	}
	if p.Files, err = edits.Merge(p.Files, room, proc); err != nil {
		return nil, err
	}
	with := cdi.With{Compat: cdi.Compat(gpus, p.Wish), Mounts: slices.Concat(views.Mounts, services.Mounts), Shared: common}
	return func() (cdi.Prepared, error) { return cdi.PrepareRoot(root, spec, dir, n.config.State, with) }, nil
}

// mountShared makes sure that the directory of files that containers have in common is
// mounted in this mount namespace, or says that no container can get it otherwise. Where
// the machine can't mount it like that, containers get the directory itself.
func (n *Node) mountShared(ctx context.Context, s snapshot.Snapshot) (shared.Dir, error) {
	d := n.config.SharedFiles()
	var err error
	if s.OwnedFiles == "" {
		err = d.EnsureMounted(ctx)
	}
	// An older berth's snapshot says nothing; the next discovery will.
	if s.OwnedFiles != "" || errors.Is(err, shared.ErrUnsupported) {
		d.Mount, err = "", nil
	}
	return d, err
}

// readWish reads what the environment chooses and the request asks for, within policy.
func (n *Node) readWish(env []string, words string) (cdi.Wish, error) {
	caps, err := n.config.Policy.chooseCapabilities(env)
	if err != nil {
		return cdi.Wish{}, err
	}
	r, err := request.Parse(words)
	if err != nil {
		return cdi.Wish{}, fmt.Errorf("the lease's %w", err)
	}
	if err := n.config.Policy.checkRequest(r); err != nil {
		return cdi.Wish{}, err
	}
	return cdi.Wish{Capabilities: caps, Features: r.Features()}, nil
}

func (n *Node) newViews(taken time.Time) cdi.Views {
	return cdi.Views{
		State: n.config.State,
		Epoch: taken.UTC().Format(time.RFC3339Nano), InUse: n.inUse,
	}
}

// inUse says whether there is a lease that holds these devices, or is what is named
// itself. A ledger that can't be read says yes.
func (n *Node) inUse(names []string) bool {
	leases, err := n.Leases()
	return err != nil || slices.ContainsFunc(leases, func(l ledger.Lease) bool {
		return !slices.ContainsFunc(names, func(name string) bool {
			return name != l.ID && !slices.ContainsFunc(l.Devices, func(d gpu.Device) bool { return d.UUID == name })
		})
	})
}

// loadDriver is the snapshot and its directory of driver files, as it is for a container
// of the capabilities, unless it was just looked at. One that was changed is taken out
// of use, which makes the snapshot stale, and both are made anew.
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
	r, err := n.CDI(ctx)
	if err != nil {
		return err
	}
	devices, err := resolveCDI(r, names, p.Majors)
	if err != nil {
		return err
	}
	if err := awaitNetDevices(ctx, spec, devices.NetDevices); err != nil {
		return err
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
