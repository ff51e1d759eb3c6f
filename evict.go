package berth

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Evict ends the holder's processes and then its lease. A lease whose holder
// can't be ended stays, and then the error says why.
//
// All that is in the holder's cgroup is killed if nobody was there before the lease
// and no other lease's container is: otherwise there are bystanders, and only the
// one process that is known is ended, with all of its pid namespace if it is the
// container's init. If others live on in that cgroup, they may hold the devices;
// the lease then stays until they have ended.
func (n *Node) Evict(ctx context.Context, l ledger.Lease) error {
	own, err := n.ends(l)
	if err != nil {
		return fmt.Errorf("end holder of lease %s: %w", l.ID, err)
	}
	if own {
		if err := n.cgroups.Kill(ctx, l.Owner.Cgroup); err != nil {
			return fmt.Errorf("end holder of lease %s: %w", l.ID, err)
		}
		return n.Release(ctx, l.ID)
	}
	return n.endOne(ctx, l)
}

// endOne ends the one process that is known, and the lease if that was all.
func (n *Node) endOne(ctx context.Context, l ledger.Lease) error {
	if l.State == ledger.Bound { // recorded while init can be looked at
		err := n.ledger.Bind(ctx, l.ID, ledger.Owner{Process: l.Owner.Process})
		if err != nil && !errors.Is(err, ledger.ErrNotFound) {
			return err
		}
	}
	if err := n.ledger.Kill(ctx, l.Owner.Process); err != nil {
		return fmt.Errorf("end holder of lease %s: %w", l.ID, err)
	}
	err := n.ReleaseIfDead(ctx, l.ID)
	if errors.Is(err, ledger.ErrLive) && l.Owner.Cgroup != "" {
		return fmt.Errorf("%w; only process %d was ended, as cgroup %s isn't the holder's alone", err, l.Owner.Process.PID, l.Owner.Cgroup)
	}
	return err
}

// ends says whether the holder ends with its cgroup. One whose cgroup is empty
// doesn't: its container isn't there yet, or it was moved.
func (n *Node) ends(l ledger.Lease) (bool, error) {
	if !l.Owner.OwnCgroup || l.Owner.Cgroup == "" {
		return false, nil
	}
	populated, err := n.cgroups.Populated(l.Owner.Cgroup)
	if err != nil || !populated {
		return false, err
	}
	all, err := n.Leases()
	for _, other := range all {
		if c := other.Owner.Cgroup; other.ID != l.ID && c != "" && cgroup.IsWithin(c, l.Owner.Cgroup) {
			return false, nil
		}
	}
	return err == nil, err
}
