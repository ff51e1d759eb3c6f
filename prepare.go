package berth

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	// Wish is what the container is to have beside its devices, as far as the
	// admin allows.
	Wish cdi.Wish
	// Files are the edits that bring in the driver's files (cdi.PrepareRoot).
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
// Without a lease (nil) it is the guard: every accelerator is foreign. The notes
// say what is taken out, for the log.
func Compose(spec *specs.Spec, lease *ledger.Lease, p Plan) (all edits.Edits, notes []string, err error) {
	added := edits.Edits{}
	if lease != nil {
		if added, err = p.add(*lease); err != nil {
			return edits.Edits{}, nil, err
		}
	}
	wall, notes, err := isolation.Wall(spec, isolation.Host{Majors: p.Majors, Stat: p.Stat}, added.Nodes)
	if err != nil {
		return edits.Edits{}, nil, err
	}
	if all, err = edits.Merge(wall, added); err != nil {
		return edits.Edits{}, nil, fmt.Errorf("prepare spec: %w", err)
	}
	return all, notes, nil
}

// Prepare applies to the spec what [Compose] says. Doing it twice is the same as once.
func Prepare(spec *specs.Spec, lease *ledger.Lease, p Plan) (notes []string, err error) {
	all, notes, err := Compose(spec, lease, p)
	if err != nil {
		return nil, err
	}
	return notes, all.Apply(spec)
}

// add says what a lease brings into a container.
func (p Plan) add(lease ledger.Lease) (edits.Edits, error) {
	devices, err := cdi.Devices(p.Inventory, lease.Devices, p.Accelerators, p.Wish)
	if err != nil {
		return edits.Edits{}, fmt.Errorf("prepare lease %s: %w", lease.ID, err)
	}
	var uuids []string
	for _, d := range lease.Devices {
		uuids = append(uuids, d.UUID)
	}
	told := edits.Edits{
		Env:         map[string]string{"BERTH_LEASE": lease.ID, "BERTH_DEVICES": strings.Join(uuids, ",")},
		Annotations: map[string]string{LeaseAnnotation: lease.ID},
	}
	return edits.Merge(devices, p.Files, told)
}

// Prepare changes the spec of a container that is about to be created, and writes
// the loader's cache into its root. root is the root file system's directory; it
// may be nil when there is no lease. The notes say, for a log, what was taken out
// and what else is remarkable.
func (n *Node) Prepare(ctx context.Context, spec *specs.Spec, lease *ledger.Lease, root *os.File) (notes []string, err error) {
	all, notes, err := n.Compose(ctx, spec, lease, root)
	if err != nil {
		return nil, err
	}
	return notes, all.Apply(spec)
}

// Compose is Prepare without the last step: the loader's cache is written into the
// root, and what else has to change is returned. It is for who can't change the
// spec any more.
func (n *Node) Compose(ctx context.Context, spec *specs.Spec, lease *ledger.Lease, root *os.File) (all edits.Edits, notes []string, err error) {
	majors, err := n.majors()
	if err != nil {
		return edits.Edits{}, nil, err
	}
	if lease == nil {
		return Compose(spec, nil, Plan{Majors: majors})
	}
	if root == nil {
		return edits.Edits{}, nil, errors.New("prepare spec: a lease needs the container's root")
	}
	s, dir, err := n.driver(ctx)
	if err != nil {
		return edits.Edits{}, nil, err
	}
	usual := cdi.Wish{Capabilities: gpu.Compute | gpu.Utility}
	files, err := cdi.PrepareRoot(root, spec, dir, n.config.State, cdi.With{Compat: cdi.Compat(lease.Devices, usual)})
	if err != nil {
		return edits.Edits{}, nil, err
	}
	all, gone, err := Compose(spec, lease, Plan{
		Inventory: s.Inventory, Majors: majors, Accelerators: s.Key.Majors, Wish: usual, Files: files.Edits,
	})
	return all, append(files.Notes, gone...), err
}

// driver is the snapshot and its directory of driver files, unless it was just
// looked at. One that was changed is taken out of use, which makes the snapshot
// stale, and both are made anew.
func (n *Node) driver(ctx context.Context) (snapshot.Snapshot, driver.Dir, error) {
	n.loading.Lock()
	defer n.loading.Unlock()
	s, err := n.snapshot(ctx)
	if err != nil {
		return s, driver.Dir{}, err
	}
	if n.loaded.Home == s.DriverDir && time.Since(n.loadedAt) < fresh {
		return s, n.loaded, nil
	}
	s, dir, err := n.load(ctx, s)
	if err == nil {
		n.loaded, n.loadedAt = dir, time.Now()
	}
	return s, dir, err
}

func (n *Node) load(ctx context.Context, s snapshot.Snapshot) (snapshot.Snapshot, driver.Dir, error) {
	dir, err := driver.Load(s.DriverDir, gpu.Compute|gpu.Utility)
	if !errors.Is(err, driver.ErrDamaged) {
		return s, dir, err
	}
	if err := n.setAside(s.DriverDir); err != nil {
		return s, driver.Dir{}, err
	}
	if s, err = n.snapshot(ctx); err != nil {
		return s, driver.Dir{}, err
	}
	dir, err = driver.Load(s.DriverDir, gpu.Compute|gpu.Utility)
	return s, dir, err
}

// setAside takes the directory out of use unless somebody just made it anew.
func (n *Node) setAside(path string) error {
	unlock, err := n.config.lockDiscovery()
	if err != nil {
		return err
	}
	if _, err = driver.Load(path, gpu.Compute|gpu.Utility); errors.Is(err, driver.ErrDamaged) {
		err = driver.SetAside(path)
	}
	unlock() // before the next lock, whose holder may wait for a discovery
	n.reading.Lock()
	n.read = nil
	n.reading.Unlock()
	return err
}

// Programs are those of the driver, which can be run in a container that holds a
// lease: the path there, and the file's on the host.
func (n *Node) Programs(ctx context.Context) (map[string]string, error) {
	_, dir, err := n.driver(ctx)
	if err != nil {
		return nil, err
	}
	return cdi.Programs(dir), nil
}

// OpenRoot opens the directory of a container's root file system for
// [Node.Prepare]. The path is trusted: links in it are followed.
func OpenRoot(path string) (*os.File, error) { return inroot.OpenRoot(path) }
