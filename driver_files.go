package berth

import (
	"context"
	"errors"
	"time"

	"github.com/berth-gpu/berth/cdi"
	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/snapshot"
)

// mountShared mounts the directory of the driver's files in this mount namespace, unless it
// is mounted. If the machine can't mount it, the result names the directory itself as the
// source of the files.
func (n *Node) mountShared(ctx context.Context, s snapshot.Snapshot) (shared.Dir, error) {
	d := n.config.SharedFiles()
	if n.config.UserData != "" { // containers of users without root own no file of root's
		return shared.Dir{Source: d.Source}, nil
	}
	if s.OwnedFiles != "" {
		return shared.Dir{Source: d.Source}, nil
	}
	return d.MountIfSupported(ctx) // snapshots of older versions have no OwnedFiles
}

// loadDriver returns the snapshot and its directory of driver files, after a check of the
// files that containers with these capabilities get. If a file was changed since discovery,
// loadDriver takes the directory out of use, which makes the snapshot stale, and runs
// berth discover. A result is reused for the duration of freshFor.
func (n *Node) loadDriver(ctx context.Context, caps gpu.Capabilities) (snapshot.Snapshot, driver.Dir, error) {
	n.loading.Lock()
	defer n.loading.Unlock()
	s, err := n.loadSnapshot(ctx)
	if err != nil {
		return s, driver.Dir{}, err
	}
	if n.loaded.Home == s.DriverDir && n.loadedFor == caps && time.Since(n.loadedAt) < freshFor {
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
	if err := n.setAsideDriver(ctx, s.DriverDir, caps); err != nil {
		return s, driver.Dir{}, err
	}
	if s, err = n.loadSnapshot(ctx); err != nil {
		return s, driver.Dir{}, err
	}
	dir, err = driver.Load(s.DriverDir, caps)
	return s, dir, err
}

// setAsideDriver takes the directory out of use unless another process has just rebuilt it.
func (n *Node) setAsideDriver(ctx context.Context, path string, caps gpu.Capabilities) error {
	held, err := n.config.lockDiscovery(ctx)
	if err != nil {
		return err
	}
	if _, err = driver.Load(path, caps); errors.Is(err, driver.ErrDamaged) {
		err = driver.SetAside(path)
	}
	held.Close() // before the next lock: its holder may wait for a discovery
	n.reading.Lock()
	n.read = nil
	n.reading.Unlock()
	return err
}

// MountFiles mounts the driver's files for containers in the caller's mount namespace,
// unless they are mounted. [Node.Prepare] calls MountFiles too; a launcher that creates a
// mount namespace for its containers calls it before.
func (n *Node) MountFiles(ctx context.Context) error {
	s, err := n.loadSnapshot(ctx)
	if err != nil {
		return err
	}
	_, err = n.mountShared(ctx, s)
	return err
}

// Programs returns the driver's programs that a container with a lease and this environment
// gets: their paths on the host by their paths in the container.
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
