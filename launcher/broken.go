package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// RemoveBroken ends and removes a task of which nothing can be read: where its processes
// are, and which runtime made its container, its directory says by itself. The error is
// what Find or Task have said of it.
func RemoveBroken(ctx context.Context, store tasks.Store, broken *tasks.BrokenError) error {
	if !broken.Hopeless() {
		return fmt.Errorf("%w; that is no reason to remove it", broken)
	}
	tree, err := cgroup.Detect("")
	if err != nil {
		return err
	}
	p := placeOf(Options{Data: or(store.Data, "/var/lib/berth"), State: or(store.State, "/run/berth")}, broken.ID)
	// A monitor that lives gives everything back when its task has ended.
	if err := endAll(ctx, tasks.Record{ID: broken.ID, Cgroup: p.cgroup()}); err != nil {
		return err
	}
	lock, err := lockEnded(ctx, p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("task %s: %w", broken.ID, err)
	}
	return errors.Join(first(
		func() error { return p.removeContainer(ctx, &host{Host: spec.Host{Cgroups: tree}}) },
		func() error { return store.Remove(broken.ID) },
		store.Prune, // it may have a name that no record says
	), lock.Close())
}
