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
// module, creates device nodes that the driver doesn't create itself, copies the
// driver's files into their directory, mounts that directory for containers, and writes
// the snapshot. One process at a time discovers; each step is atomic. log may be nil.
//
// Discover also narrows the device rules of running containers to their leases, even on a
// machine without a driver.
func Discover(ctx context.Context, c Config, source gpu.Source, log *slog.Logger) (snapshot.Snapshot, error) {
	defer narrowContainers(c, log) // a driver that discovery loads brings majors
	held, err := c.lockDiscovery(ctx)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	defer held.Close() // nothing was written
	before, err := snapshot.Load(c.SnapshotPath(), c.GPUHost())
	if err != nil {
		before = snapshot.Snapshot{} // there is no earlier state to compare with
	}
	return discoverLocked(ctx, c, source, log, before, gpuChanges{})
}

// Rediscover is Discover if the snapshot doesn't fit the machine. The check is made under
// the lock: of many processes that find the snapshot stale at once, one discovers. A GPU
// that the kernel's log has reported as lost since the snapshot counts as lost until the
// next Discover, whatever the driver's library reports.
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
		return discoverLocked(ctx, c, source, log, snapshot.Snapshot{}, gpuChanges{})
	}
	if err != nil {
		return s, err
	}
	u, err := findGPUChanges(h, s)
	if err == nil && !u.changed && s.OwnedFiles == "" {
		err = c.SharedFiles().EnsureMounted(ctx)
	}
	if errors.Is(err, shared.ErrUnsupported) { // snapshots of older versions don't record it
		return discoverLocked(ctx, c, source, log, s, u)
	}
	if err != nil || !u.changed {
		return s, err
	}
	renewed, err := discoverLocked(ctx, c, source, log, s, u)
	if err != nil { // the driver's library doesn't answer: record the lost GPUs without it
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

// saveLosses marks the GPUs that are lost now in a snapshot, without the driver's library.
func saveLosses(c Config, s snapshot.Snapshot, u gpuChanges) error {
	h, before := c.GPUHost(), s.Inventory
	s.Inventory.GPUs = sysfs.MarkLost(h, slices.Clone(before.GPUs))
	markReportedLost(s.Inventory.GPUs, u.lost)
	s.OffBus, s.KernelLog = listOffBus(h, s.Inventory.GPUs), u.xid
	n := Node{config: c, ledger: openLedger(c, nil, nil)}
	n.logLostGPUs(before, s.Inventory)
	return snapshot.Save(c.SnapshotPath(), s)
}

// discoverLocked takes a new snapshot. The caller holds the lock of lockDiscovery. before is
// the present snapshot if it fits the machine, and otherwise zero.
func discoverLocked(ctx context.Context, c Config, source gpu.Source, log *slog.Logger, before snapshot.Snapshot, u gpuChanges) (snapshot.Snapshot, error) {
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
	markReportedLost(inv.GPUs, u.lost)
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
	n := Node{config: c, ledger: openLedger(c, nil, nil)}
	n.logLostGPUs(before.Inventory, inv)
	if err := snapshot.Save(c.SnapshotPath(), s); err != nil {
		return s, err
	}
	return s, errors.Join(syncDeviceGuard(ctx, c), n.newViews(s.Taken).Prune(), n.nicSource().Prune(), renewMenu(c, inv))
}

// syncDeviceGuard updates the device guard's rules for devices that are new in the snapshot.
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

// makeNodes loads the uvm module and creates the device nodes that the driver doesn't
// create itself. Where modprobe is missing, as on a host that loads its modules elsewhere,
// makeNodes logs that the admin has to load uvm.
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

// discoveryLimit bounds the wait for another process's discovery, which may be stopped or
// frozen. It is longer than any discovery takes.
const discoveryLimit = 10 * time.Minute

// lockDiscovery waits for the lock under which one process at a time discovers. The caller
// closes the lock.
func (c Config) lockDiscovery(ctx context.Context) (*lock.Lock, error) {
	if err := os.MkdirAll(c.State, 0o755); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, discoveryLimit)
	defer cancel()
	return lock.Create(ctx, filepath.Join(c.State, "discover.lock"), 0o600, lock.Exclusive)
}
