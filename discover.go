package berth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/discover"
	"github.com/berth-gpu/berth/gpu/nodes"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/internal/lock"
)

// ErrNoDriver: the node has no accelerator driver.
var ErrNoDriver = gpu.ErrNoDriver

// Discover reads the node and prepares it for container starts: it loads the uvm
// module and makes device nodes where the driver leaves that to others, copies the
// driver's files into their directory, and writes the snapshot. One process does
// so at a time; each step is atomic. log may be nil.
func Discover(ctx context.Context, c Config, source gpu.Source, log *slog.Logger) (snapshot.Snapshot, error) {
	held, err := c.lockDiscovery(ctx)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	defer held.Close() // nothing was written
	return discoverLocked(ctx, c, source, log)
}

// Rediscover is Discover unless the snapshot fits the machine, now that it is this
// process's turn: of many that find it stale at once, one does the work.
func Rediscover(ctx context.Context, c Config, source gpu.Source, log *slog.Logger) (snapshot.Snapshot, error) {
	held, err := c.lockDiscovery(ctx)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	defer held.Close() // nothing was written
	s, err := snapshot.Load(c.SnapshotPath(), c.GPUHost())
	if !errors.Is(err, snapshot.ErrStale) {
		return s, err
	}
	return discoverLocked(ctx, c, source, log)
}

func discoverLocked(ctx context.Context, c Config, source gpu.Source, log *slog.Logger) (snapshot.Snapshot, error) {
	h := c.GPUHost()
	if err := makeNodes(ctx, h, log); err != nil {
		return snapshot.Snapshot{}, err
	}
	// Read before everything else: a change meanwhile makes the snapshot stale.
	key, err := snapshot.ReadKey(h)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	inv, err := discover.Inventory(ctx, source, h)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	home, err := driver.Build(ctx, h, inv.Driver.Version, c.Data)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	s := snapshot.Snapshot{Taken: time.Now().UTC(), Key: key, Inventory: inv, DriverDir: home}
	n := Node{config: c, ledger: openLedger(c)}
	return s, errors.Join(snapshot.Save(c.SnapshotPath(), s), n.newViews(s.Taken).Prune(), n.nicSource().Prune(), renewMenu(c, inv))
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

// lockDiscovery has one process discover at a time, until the returned file is closed.
func (c Config) lockDiscovery(ctx context.Context) (*os.File, error) {
	if err := os.MkdirAll(c.State, 0o755); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	return lock.Create(ctx, filepath.Join(c.State, "discover.lock"), 0o600, lock.Exclusive)
}
