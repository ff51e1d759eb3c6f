package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/devices"
	"github.com/berth-gpu/berth/isolation/ledger"
)

const (
	// removeTimeout limits the wait for the kernel to release a cgroup whose last process has
	// ended.
	removeTimeout = time.Second
	// createTimeout bounds the creation of an outer cgroup. Before Linux 5.14 any user of
	// the machine can hold its lock.
	createTimeout = 10 * time.Second
)

// OuterCgroupPath returns the path of a new outer cgroup for a container whose cgroup would be own;
// both are as the host sees them. The outer cgroup is beside own, and the container's cgroup then
// goes below it. If systemd creates the container's cgroup, the outer one is a slice, which systemd
// adopts with its device rules.
//
// ok is false for a container that cannot lift its own device rules, which takes CAP_SYS_ADMIN,
// unless it will have a lease and the device guard is on: the guard opens a lease's devices for a
// cgroup that exists already. It is false under systemd with cgroup version 1, under a user's
// instance of systemd, and where the container itself is a slice.
func (g Guard) OuterCgroupPath(spec *specs.Spec, own string, systemd, leased bool) (outer string, ok bool, err error) {
	if !isolation.CanLiftDeviceRules(spec) {
		if !leased {
			return "", false, nil
		}
		if on, err := g.HostGuarded(); !on {
			return "", false, err
		}
	}
	if systemd {
		if ok, err := g.canBeSlice(own); !ok {
			return "", false, err
		}
	}
	outer, err = g.newOuterPath(own, systemd)
	return outer, err == nil, err
}

// CreateOuterCgroup creates the outer cgroup with the device rules of the prepared spec.
// Whatever the container does to the rules of its own cgroup, it cannot open more. It
// also removes outer cgroups beside it that no container uses any more.
func (g Guard) CreateOuterCgroup(ctx context.Context, outer string, spec *specs.Spec) error {
	g.sweepOuterCgroups(path.Dir(outer))
	if spec.Linux == nil || spec.Linux.Resources == nil {
		return fmt.Errorf("create outer cgroup %s: the spec has no device rules", outer)
	}
	rules := rulesOf(spec)
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	if isSlice(outer) {
		if err := devices.WriteOuterSlice(g.Units, path.Base(outer), rules); err != nil {
			return err
		}
	}
	return devices.CreateOuterCgroup(ctx, g.Cgroups, outer, rules)
}

// RemoveOuterCgroup removes the outer cgroup of a container that has ended. It does
// nothing for a path that names no outer cgroup, and for one that another live process
// created: its container may be about to be created. Live processes in it are an error.
func (g Guard) RemoveOuterCgroup(ctx context.Context, outer string) error {
	pid, start, ok := creatorOf(path.Base(outer))
	if !ok || pid != os.Getpid() && g.isRunning(pid, start) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	err := devices.RemoveOuterCgroup(ctx, g.Cgroups, outer)
	if err == nil && isSlice(outer) {
		err = devices.RemoveUnitFiles(g.Units, path.Base(outer))
	}
	return err
}

// sweepOuterCgroups removes outer cgroups in the parent, and slices anywhere, that were left
// behind: the process that created one was killed before its container existed, or no delete was
// called for the container. An outer cgroup whose creator lives is kept, because the creator may be
// about to become the runtime. What cannot be removed at once is left to the next sweep and is no
// error.
func (g Guard) sweepOuterCgroups(parent string) {
	once, cancel := context.WithCancel(context.Background())
	cancel() // a removal must not wait
	for _, outer := range g.listOuterCgroups(parent) {
		if !g.isExpected(outer) {
			_ = g.RemoveOuterCgroup(once, outer)
		}
	}
}

// listOuterCgroups lists the outer cgroups in the parent and all outer slices. Unreadable
// directories are skipped until the next sweep.
func (g Guard) listOuterCgroups(parent string) (all []string) {
	if dir, err := g.Cgroups.Dir(parent); err == nil {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if isOuterName(e.Name()) {
				all = append(all, path.Join(parent, e.Name()))
			}
		}
	}
	units, _ := devices.ListOuterSlices(g.Units)
	for _, unit := range units {
		outer, err := cgroup.ExpandSlice(unit)
		if err == nil && isOuterName(unit) && !slices.Contains(all, outer) {
			all = append(all, outer)
		}
	}
	return all
}

// isExpected reports whether the container of an outer cgroup may be about to be created:
// the process that created the cgroup lives, or there is a lease for the container.
func (g Guard) isExpected(outer string) bool {
	if pid, start, _ := creatorOf(path.Base(outer)); g.isRunning(pid, start) {
		return true
	}
	leases, err := g.Ledger.ReadLeases()
	return err != nil || slices.ContainsFunc(leases, func(l ledger.Lease) bool { return enclosingOuter(l.Owner.Cgroup) == outer })
}

// isRunning reports whether the process with that start time still exists.
func (g Guard) isRunning(pid int, start uint64) bool {
	now, err := process.Start(g.Host.ProcPath(), pid)
	return err == nil && now == start || err != nil && !errors.Is(err, fs.ErrNotExist)
}
