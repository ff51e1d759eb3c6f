package ledger

import (
	"cmp"
	"context"
	"fmt"
)

// Bind records the container's init and cgroup, o.Process and o.Cgroup, as the proof
// of life. The start and the namespace of the process may be 0, they are then read; a
// cgroup of "" leaves the one that the lease expects. o.Container and o.Bundle are
// recorded where the lease has none; of the rest of o nothing counts. Binding again is
// no error. The error Is ErrNotFound if there is no such lease (any more).
func (l *Ledger) Bind(ctx context.Context, id string, o Owner) error {
	me, err := l.world.Self()
	if err != nil {
		return err
	}
	if o.Process, err = l.complete(o.Process, me); err != nil {
		return fmt.Errorf("bind lease %s to process %d: %w", id, o.Process.PID, err)
	}
	return l.change(ctx, func(tx *change) error {
		i := tx.find(id)
		if i < 0 {
			return fmt.Errorf("bind lease %s: %w", id, ErrNotFound)
		}
		lease, err := tx.lease(i)
		if err != nil {
			return err
		}
		if lease.Owner.is(o) && lease.State == Bound {
			return nil
		}
		lease.State, lease.Owner = Bound, tx.bound(lease.Owner, o)
		if lease.Owner, err = lease.Owner.checked(); err != nil {
			return err
		}
		tx.replace(i, lease)
		return nil
	})
}

// is says that binding to o would change nothing.
func (has Owner) is(o Owner) bool {
	own := ownCgroup(o.Cgroup)
	return has.Process == o.Process && (own == "" || own == has.Cgroup) &&
		has.Container == cmp.Or(has.Container, o.Container) && has.Bundle == cmp.Or(has.Bundle, o.Bundle)
}

// bound is the owner of a lease that is bound to what o says.
func (tx *change) bound(owner, o Owner) Owner {
	owner.Process = o.Process
	owner.Reaper = o.Process.Namespace == tx.me.Namespace && tx.ledger.world.Reaper(o.Process.PID)
	owner.Container, owner.Bundle = cmp.Or(owner.Container, o.Container), cmp.Or(owner.Bundle, o.Bundle)
	if own := ownCgroup(o.Cgroup); own != "" {
		owner.OwnCgroup = owner.OwnCgroup && owner.Cgroup == own && owner.CgroupNS == tx.me.cgroupNS
		owner.Cgroup, owner.CgroupNS = own, tx.me.cgroupNS
	}
	return owner
}
