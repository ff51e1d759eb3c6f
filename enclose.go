package berth

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

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/devices"
	"github.com/berth-gpu/berth/isolation/ledger"
)

const (
	// burial is how long the kernel gets to let go of a cgroup whose last process ended.
	burial = time.Second
	// patience is how long a new outer cgroup may take, whoever holds its lock: any
	// user of the machine can.
	patience = 10 * time.Second
)

// Outer is the path of an outer cgroup for a container that would be in the cgroup
// own, both as the host sees them: beside it, and of this one life. The container's
// own cgroup then goes below it. If systemd makes the container's cgroup, the outer
// one is a slice, which systemd takes over with its rules. ok is false for a container
// that can't take off its own rules, which needs CAP_SYS_ADMIN; and under systemd with
// version 1, under a user's own one, and where a container is a slice.
func (n *Node) Outer(spec *specs.Spec, own string, systemd bool) (outer string, ok bool, err error) {
	if !isolation.CanLiftRules(spec) {
		return "", false, nil
	}
	if systemd {
		if ok, err := n.sliced(own); !ok {
			return "", false, err
		}
	}
	outer, err = n.outerPath(own, systemd)
	return outer, err == nil, err
}

// Enclose makes the outer cgroup, with the device rules of the prepared spec: whatever
// the container does to the rules of its own cgroup, it can't open more. Those that
// others left beside it, and that nobody uses any more, go.
func (n *Node) Enclose(ctx context.Context, outer string, spec *specs.Spec) error {
	n.sweepOuter(path.Dir(outer))
	if spec.Linux == nil || spec.Linux.Resources == nil {
		return fmt.Errorf("make outer cgroup %s: the spec has no device rules", outer)
	}
	var rules []edits.Rule
	for _, r := range spec.Linux.Resources.Devices {
		rules = append(rules, edits.FromSpec(r))
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if isSlice(outer) {
		if err := devices.TellOuter(n.units, path.Base(outer), rules); err != nil {
			return err
		}
	}
	return devices.MakeOuter(ctx, n.cgroups, outer, rules)
}

// Unclose removes the outer cgroup of a container that is gone. A path that isn't
// one's is left alone, and so is one whose maker is another process that lives: its
// container may be about to come. Processes that live in it keep it.
func (n *Node) Unclose(ctx context.Context, outer string) error {
	pid, start, ok := makerOf(path.Base(outer))
	if !ok || pid != os.Getpid() && n.lives(pid, start) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, burial)
	defer cancel()
	err := devices.RemoveOuter(ctx, n.cgroups, outer)
	if err == nil && isSlice(outer) {
		err = devices.ForgetSystemd(n.units, path.Base(outer))
	}
	return err
}

// sweepOuter removes outer cgroups in the parent, and those that are slices wherever
// they are, whose maker is gone and in which nobody lives: it was killed before its
// container came to be, or nobody has called delete for it. A maker that lives may be
// about to become the runtime. What can't go at once stays for the next sweep, and
// stands in the way of no container.
func (n *Node) sweepOuter(parent string) {
	once, cancel := context.WithCancel(context.Background())
	cancel() // nothing is waited for
	for _, outer := range n.outers(parent) {
		if !n.making(outer) {
			_ = n.Unclose(once, outer)
		}
	}
}

// outers finds what is there; who can't be read is left to the next sweep.
func (n *Node) outers(parent string) (all []string) {
	if dir, err := n.cgroups.Dir(parent); err == nil {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if isOuter(e.Name()) {
				all = append(all, path.Join(parent, e.Name()))
			}
		}
	}
	units, _ := devices.OuterSlices(n.units)
	for _, unit := range units {
		outer, err := cgroup.ExpandSlice(unit)
		if err == nil && isOuter(unit) && !slices.Contains(all, outer) {
			all = append(all, outer)
		}
	}
	return all
}

// making says that the container of an outer cgroup may be about to come: who made
// the cgroup lives, or there is a lease for it.
func (n *Node) making(outer string) bool {
	if pid, start, _ := makerOf(path.Base(outer)); n.lives(pid, start) {
		return true
	}
	leases, err := n.Leases()
	return err != nil || slices.ContainsFunc(leases, func(l ledger.Lease) bool { return outerOf(l.Owner.Cgroup) == outer })
}

// lives says that a process that started then is still there.
func (n *Node) lives(pid int, start uint64) bool {
	now, err := process.Start(n.config.GPUHost().ProcPath(), pid)
	return err == nil && now == start || err != nil && !errors.Is(err, fs.ErrNotExist)
}
