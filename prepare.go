package berth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi"
	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/isolation"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// LeaseAnnotation is set on a container that holds a lease: its value is the id.
const LeaseAnnotation = "dev.berth.lease"

// Plan is what Prepare works from: plain data, gathered beforehand.
type Plan struct {
	Inventory gpu.Inventory
	// Majors are the host's character majors; Accelerators those of the
	// accelerators' drivers by name (snapshot.Key.Majors).
	Majors       []gpu.Major
	Accelerators map[string]uint32
	// Ordinary are devices that have an accelerator's major and are none.
	Ordinary []isolation.Number
	// Wish is what the container is to have beside its devices, as far as the
	// admin allows.
	Wish cdi.Wish
	// Files are the edits that bring in what goes with the devices: the driver's
	// files (cdi.PrepareRoot), views and sockets, and other vendors' devices.
	Files edits.Edits
	// Stat finds out what the source of a bind mount is; nil asks the host.
	Stat func(path string) (isolation.Number, bool)
}

// Compose is the only composer of what berth changes in a container: foreign
// accelerators go, the lease's devices and the driver's files come, the device
// rules become the wall, and what is left over is masked. It reads the spec and
// changes nothing; what it returns can be applied to the spec (edits.Edits.Apply)
// or, by a hook, to the container that is being made of it.
//
// Without a lease (nil) it is the guard: every accelerator is foreign. removed lists
// what the spec loses.
func Compose(spec *specs.Spec, lease *ledger.Lease, p Plan) (all edits.Edits, removed []edits.Removal, err error) {
	added := edits.Edits{}
	if lease != nil {
		if added, err = p.add(*lease); err != nil {
			return edits.Edits{}, nil, err
		}
	}
	wall, removed, err := isolation.Wall(spec, isolation.Host{Majors: p.Majors, Ordinary: p.Ordinary, Stat: p.Stat}, added.Nodes)
	if err != nil {
		return edits.Edits{}, nil, err
	}
	if all, err = edits.Merge(wall, added); err != nil {
		return edits.Edits{}, nil, fmt.Errorf("prepare spec: %w", err)
	}
	return all, removed, nil
}

// Prepare applies to the spec what [Compose] says. Doing it twice is the same as once.
func Prepare(spec *specs.Spec, lease *ledger.Lease, p Plan) (removed []edits.Removal, err error) {
	all, removed, err := Compose(spec, lease, p)
	if err != nil {
		return nil, err
	}
	return removed, all.Apply(spec)
}

// add says what a lease brings into a container.
func (p Plan) add(lease ledger.Lease) (edits.Edits, error) {
	gpus, _, _ := split(lease.Devices)
	devices, err := cdi.Devices(p.Inventory, gpus, p.Accelerators, p.Wish)
	if err != nil {
		return edits.Edits{}, fmt.Errorf("prepare lease %s: %w", lease.ID, err)
	}
	var uuids []string
	for _, d := range lease.Devices {
		if !slices.Contains(uuids, d.UUID) {
			uuids = append(uuids, d.UUID)
		}
	}
	told := edits.Edits{
		Env:         map[string]string{"BERTH_LEASE": lease.ID, "BERTH_DEVICES": strings.Join(uuids, ",")},
		Annotations: map[string]string{LeaseAnnotation: lease.ID},
	}
	return edits.Merge(devices, p.Files, told)
}

// driver is the snapshot and its directory of driver files, as it is for a container
// of the capabilities, unless it was just looked at. One that was changed is taken out
// of use, which makes the snapshot stale, and both are made anew.
func (n *Node) driver(ctx context.Context, caps gpu.Capabilities) (snapshot.Snapshot, driver.Dir, error) {
	n.loading.Lock()
	defer n.loading.Unlock()
	s, err := n.snapshot(ctx)
	if err != nil {
		return s, driver.Dir{}, err
	}
	if n.loaded.Home == s.DriverDir && n.loadedFor == caps && time.Since(n.loadedAt) < fresh {
		return s, n.loaded, nil
	}
	s, dir, err := n.load(ctx, s, caps)
	if err == nil {
		n.loaded, n.loadedFor, n.loadedAt = dir, caps, time.Now()
	}
	return s, dir, err
}

func (n *Node) load(ctx context.Context, s snapshot.Snapshot, caps gpu.Capabilities) (snapshot.Snapshot, driver.Dir, error) {
	dir, err := driver.Load(s.DriverDir, caps)
	if !errors.Is(err, driver.ErrDamaged) {
		return s, dir, err
	}
	if err := n.setAside(ctx, s.DriverDir, caps); err != nil {
		return s, driver.Dir{}, err
	}
	if s, err = n.snapshot(ctx); err != nil {
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

// Programs are those of the driver, which can be run in a container that holds a
// lease and has this environment: the path there, and the file's on the host.
func (n *Node) Programs(ctx context.Context, env []string) (map[string]string, error) {
	caps, err := n.config.Policy.choose(env)
	if err != nil {
		return nil, err
	}
	_, dir, err := n.driver(ctx, caps)
	if err != nil {
		return nil, err
	}
	return cdi.Programs(dir), nil
}

// OpenRoot opens the directory of a container's root file system for
// [Node.Prepare]. The path is trusted: links in it are followed.
func OpenRoot(path string) (*os.File, error) { return inroot.OpenRoot(path) }
