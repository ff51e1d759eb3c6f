package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// evictTimeout limits the wait for killed processes to end.
const evictTimeout = 30 * time.Second

// Evict ends the processes of the holder and then its lease. If the holder can't be ended
// within 30 seconds, the lease stays and the error says why.
//
// Evict kills everything in the holder's cgroup if the cgroup was empty before the lease
// and holds nothing of another lease, or only leases that a command's own processes have taken, which end
// with it. Otherwise it ends only the one process that the lease names, and with a container's init its pid
// namespace. If other processes live on in the cgroup, they may hold the devices: the lease then stays until
// they have ended.
//
// An engine that is creating the container of a reserved lease isn't killed: the lease ends, and
// the engine can't start the container.
func (g Guard) Evict(ctx context.Context, l ledger.Lease) error {
	limited, cancel := context.WithTimeout(ctx, evictTimeout)
	defer cancel()
	err := g.endHolder(limited, l)
	if isExitTimeout(err) && ctx.Err() == nil {
		err = fmt.Errorf("end holder of lease %s: it was killed and hasn't ended after %v: %s", l.ID, evictTimeout, g.describeSurvivors(l))
	}
	return err
}

// isExitTimeout reports whether err means that processes did not end in time. A lock that timed out
// is a different error, which names the lock's holder.
func isExitTimeout(err error) bool {
	var held *lock.HeldError
	return errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &held)
}

// describeSurvivors names the processes of a holder that still run, and the possible causes.
func (g Guard) describeSurvivors(l ledger.Lease) string {
	pids, err := g.Cgroups.PIDs(l.Owner.Cgroup)
	if err != nil || l.Owner.Cgroup == "" || len(pids) == 0 {
		pids = []int{l.Owner.Process.PID}
	}
	if traced := process.DescribeTracer(g.Host.ProcPath(), pids); traced != "" {
		return traced
	}
	return fmt.Sprintf("process %d waits for the kernel or a device, or is in a frozen cgroup that has to be thawed first", pids[0])
}

func (g Guard) endHolder(ctx context.Context, l ledger.Lease) error {
	own, err := g.endsWithCgroup(l)
	if err != nil {
		return fmt.Errorf("end holder of lease %s: %w", l.ID, err)
	}
	if own {
		return g.endCgroup(ctx, l)
	}
	if l.State == ledger.Reserved && l.Owner.Engine {
		return g.Ledger.ReleaseUncreated(ctx, l.ID)
	}
	return g.endProcess(ctx, l)
}

// endCgroup ends the processes in a holder's own cgroup, and then the lease. It repeats that for processes that have entered the cgroup
// meanwhile.
func (g Guard) endCgroup(ctx context.Context, l ledger.Lease) error {
	if g.CloseCommand != nil && g.IsCommand != nil && g.IsCommand(l.Owner.Cgroup) {
		if err := g.CloseCommand(l.Owner.Cgroup); err != nil {
			return fmt.Errorf("end holder of lease %s: %w", l.ID, err)
		}
	}
	for {
		if err := g.Cgroups.Kill(ctx, l.Owner.Cgroup); err != nil {
			return fmt.Errorf("end holder of lease %s: %w", l.ID, err)
		}
		if err := g.releaseBelow(ctx, l); err != nil {
			return fmt.Errorf("end holder of lease %s: %w", l.ID, err)
		}
		err := g.Ledger.ReleaseEmpty(ctx, l.ID)
		if !errors.Is(err, ledger.ErrLive) || ctx.Err() != nil {
			return err
		}
	}
}

// endProcess ends the process that the lease names, and the lease if no other process of the holder
// is left.
func (g Guard) endProcess(ctx context.Context, l ledger.Lease) error {
	if l.State == ledger.Bound { // record the container's init while it still exists
		err := g.Ledger.Bind(ctx, l.ID, ledger.Owner{Process: l.Owner.Process})
		if err != nil && !errors.Is(err, ledger.ErrNotFound) {
			return err
		}
	}
	if err := g.Ledger.Kill(ctx, l.Owner.Process); err != nil {
		return fmt.Errorf("end holder of lease %s: %w", l.ID, err)
	}
	err := g.Ledger.ReleaseIfDead(ctx, l.ID)
	if errors.Is(err, ledger.ErrLive) && l.Owner.Cgroup != "" {
		return fmt.Errorf("%w; only process %d was ended, as cgroup %s isn't the holder's alone", err, l.Owner.Process.PID, l.Owner.Cgroup)
	}
	return err
}

// endsWithCgroup reports whether killing the holder's cgroup ends the holder and nothing else.
// It is false for an empty cgroup: the container isn't there yet, or it was moved.
func (g Guard) endsWithCgroup(l ledger.Lease) (bool, error) {
	if !l.Owner.OwnCgroup || l.Owner.Cgroup == "" {
		return false, nil
	}
	populated, err := g.Cgroups.Populated(l.Owner.Cgroup)
	if err != nil || !populated {
		return false, err
	}
	all, err := g.Ledger.ReadLeases()
	for _, other := range all {
		if isBelow(other, l) && !g.endsWith(other.Owner, l.Owner) {
			return false, nil
		}
	}
	return err == nil, err
}

// isBelow reports whether other is another lease whose holder is in the cgroup of l's.
func isBelow(other, l ledger.Lease) bool {
	return other.ID != l.ID && other.Owner.Cgroup != "" && cgroup.IsWithin(other.Owner.Cgroup, l.Owner.Cgroup)
}

// endsWith reports whether inner, the holder of a lease below the cgroup of outer, may be ended with
// outer: both are commands of the same user. The processes of outer can take such leases faster than they
// can be released one by one.
func (g Guard) endsWith(inner, outer ledger.Owner) bool {
	return g.IsCommand != nil && g.IsCommand(inner.Cgroup) && g.IsCommand(outer.Cgroup) && inner.OwnCgroup && inner.UID == outer.UID
}

// releaseBelow releases the leases below the cgroup of l, whose processes have been killed. The list is read
// again, because leases may have been taken until then.
func (g Guard) releaseBelow(ctx context.Context, l ledger.Lease) error {
	all, err := g.Ledger.ReadLeases()
	for _, other := range all {
		if isBelow(other, l) {
			err = errors.Join(err, g.Ledger.ReleaseIfDead(ctx, other.ID))
		}
	}
	return err
}
