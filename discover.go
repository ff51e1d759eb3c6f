package berth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/discover"
	"github.com/berth-gpu/berth/gpu/nodes"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/gpu/sysfs"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// ErrNoDriver: the node has no accelerator driver.
var ErrNoDriver = gpu.ErrNoDriver

// Discover reads the node and prepares it for container starts: it loads the uvm
// module and makes device nodes where the driver leaves that to others, copies the
// driver's files into their directory, mounts that for containers, and writes the
// snapshot. One process does so at a time; each step is atomic. log may be nil.
//
// Discover also closes accelerators to running containers that hold no lease of them, also
// on a machine without a driver.
func Discover(ctx context.Context, c Config, source gpu.Source, log *slog.Logger) (snapshot.Snapshot, error) {
	defer narrowContainers(c, log) // a driver that discovery loads brings majors
	held, err := c.lockDiscovery(ctx)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	defer held.Close() // nothing was written
	before, err := snapshot.Load(c.SnapshotPath(), c.GPUHost())
	if err != nil {
		before = snapshot.Snapshot{} // nothing is known of before
	}
	return discoverLocked(ctx, c, source, log, before, unnoticed{})
}

// Rediscover is Discover unless the snapshot fits the machine, now that it is this
// process's turn: of many that find it stale at once, one does the work. GPUs that the
// kernel's log calls lost since the snapshot are lost, whatever the driver's library says,
// until the next Discover.
func Rediscover(ctx context.Context, c Config, source gpu.Source, log *slog.Logger) (snapshot.Snapshot, error) {
	defer narrowContainers(c, log) // a driver that discovery loads brings majors
	held, err := c.lockDiscovery(ctx)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	defer held.Close() // nothing was written
	h := c.GPUHost()
	s, err := snapshot.Load(c.SnapshotPath(), h)
	if errors.Is(err, snapshot.ErrStale) {
		return discoverLocked(ctx, c, source, log, snapshot.Snapshot{}, unnoticed{})
	}
	if err != nil {
		return s, err
	}
	u, err := findUnnoticed(h, s)
	if err == nil && !u.changed && s.OwnedFiles == "" {
		err = c.SharedFiles().EnsureMounted(ctx)
	}
	if errors.Is(err, shared.ErrUnsupported) { // which an older berth's snapshot doesn't say
		return discoverLocked(ctx, c, source, log, s, u)
	}
	if err != nil || !u.changed {
		return s, err
	}
	renewed, err := discoverLocked(ctx, c, source, log, s, u)
	if err != nil { // GPUs that are lost stay lost where the driver's library doesn't answer
		err = errors.Join(err, saveLosses(c, s, u))
	}
	return renewed, err
}

// narrowContainers narrows the device rules of running containers, and logs which containers it has
// narrowed. Errors are logged and don't fail the discovery; berth doctor lists the containers that stay.
func narrowContainers(c Config, log *slog.Logger) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	n, err := Open(c)
	if err != nil {
		log.Warn("running containers are not examined", "error", err)
		return
	}
	narrowed, err := n.guard.NarrowContainers()
	if err != nil {
		log.Warn("not every running container is kept from accelerators", "error", err)
	}
	for _, id := range narrowed {
		log.Warn("container " + id + " could open accelerators that it holds no lease of: its device rules now deny them")
	}
}

// saveLosses renews a snapshot without the driver's library.
func saveLosses(c Config, s snapshot.Snapshot, u unnoticed) error {
	h, before := c.GPUHost(), s.Inventory
	s.Inventory.GPUs = sysfs.MarkLost(h, slices.Clone(before.GPUs))
	markReported(s.Inventory.GPUs, u.lost)
	s.OffBus, s.KernelLog = listOffBus(h, s.Inventory.GPUs), u.xid
	n := Node{config: c, ledger: openLedger(c, nil)}
	n.tellHolders(before, s.Inventory)
	return snapshot.Save(c.SnapshotPath(), s)
}

// discoverLocked takes a new snapshot. before is the present one, if it fits the machine.
func discoverLocked(ctx context.Context, c Config, source gpu.Source, log *slog.Logger, before snapshot.Snapshot, u unnoticed) (snapshot.Snapshot, error) {
	h := c.GPUHost()
	if err := makeNodes(ctx, h, log); err != nil {
		return snapshot.Snapshot{}, err
	}
	// Read before everything else: a change meanwhile makes the snapshot stale.
	key, err := snapshot.ReadKey(h)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	xid, err := lastXid(h)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	inv, err := discover.Inventory(ctx, source, h)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	inv.GPUs = sysfs.MarkLost(h, inv.GPUs)
	markReported(inv.GPUs, u.lost)
	home, err := driver.Build(ctx, h, inv.Driver.Version, c.Data)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	s := snapshot.Snapshot{Taken: time.Now().UTC(), Key: key, Inventory: inv, DriverDir: home, OffBus: listOffBus(h, inv.GPUs), KernelLog: xid}
	switch err := c.SharedFiles().EnsureMounted(ctx); {
	case errors.Is(err, shared.ErrUnsupported):
		s.OwnedFiles = err.Error()
	case err != nil:
		return snapshot.Snapshot{}, err
	}
	n := Node{config: c, ledger: openLedger(c, nil)}
	n.tellHolders(before.Inventory, inv)
	if err := snapshot.Save(c.SnapshotPath(), s); err != nil {
		return s, err
	}
	return s, errors.Join(syncDeviceGuard(ctx, c), n.newViews(s.Taken).Prune(), n.nicSource().Prune(), renewMenu(c, inv))
}

// syncDeviceGuard has the device guard know of new devices.
func syncDeviceGuard(ctx context.Context, c Config) error {
	n, err := Open(c)
	if errors.Is(err, cgroup.ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	return n.SyncDeviceGuard(ctx)
}

// makeNodes does what the driver leaves to others. A kernel whose modules come
// from elsewhere has no modprobe here: uvm is then the admin's to load, and said.
func makeNodes(ctx context.Context, h gpu.Host, log *slog.Logger) error {
	if _, err := nodes.LoadUVM(ctx, h); err != nil {
		if log != nil {
			log.Warn("nvidia-uvm is not loaded, CUDA will not work", "error", err)
		}
	}
	wanted, err := nodes.Plan(h)
	if err != nil {
		return err
	}
	_, err = nodes.Make(h, wanted)
	return err
}

// discoveryLimit is more than a discovery takes. A holder of its lock that is stopped or frozen isn't waited
// for that long.
const discoveryLimit = 10 * time.Minute

// lockDiscovery has one process discover at a time, until the returned lock is closed.
func (c Config) lockDiscovery(ctx context.Context) (*lock.Lock, error) {
	if err := os.MkdirAll(c.State, 0o755); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, discoveryLimit)
	defer cancel()
	return lock.Create(ctx, filepath.Join(c.State, "discover.lock"), 0o600, lock.Exclusive)
}
