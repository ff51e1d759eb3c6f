package ledger

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
)

// IsMissing reports whether there is no ledger, and no receipt from which it could be rebuilt:
// nothing was leased since the machine was started, or the directory was removed or is another one.
func (l *Ledger) IsMissing() bool {
	_, err := os.Lstat(l.store.ledgerPath())
	if !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	receipts, _ := os.ReadDir(l.store.receiptsDir())
	return len(receipts) == 0
}

// Adopt records leases of holders that were found without a ledger. Each lease has its id, its
// devices, its request, and of its owner the process in this pid namespace and the cgroup. An id
// that is already used or invalid is replaced. Of two leases on one device the first is kept.
func (l *Ledger) Adopt(ctx context.Context, leases []Lease, reason error) (Repaired, error) {
	r := Repaired{Reason: reason}
	err := l.update(ctx, func(tx *transaction) error {
		for _, lease := range leases {
			lease.State, lease.Since = Bound, tx.now.Round(0)
			lease.Owner.BootID, lease.Owner.CgroupNS, lease.Owner.Process.Namespace = tx.me.boot, tx.me.cgroupNS, tx.me.Namespace
			if !isValidID(lease.ID) || tx.findLease(lease.ID) >= 0 {
				lease.ID = tx.newID()
			}
			var err error
			if lease.Owner, err = lease.Owner.sanitize(); err != nil {
				r.Dropped = append(r.Dropped, Dropped{Lease: lease, Why: err.Error()})
				continue
			}
			if held, _ := leasedDevices(tx.leases); slices.ContainsFunc(held, lease.conflicts) {
				r.Dropped = append(r.Dropped, Dropped{Lease: lease, Why: "another lease has its device"})
				continue
			}
			tx.leases, tx.put, tx.dirty = append(tx.leases, newRecord(lease)), append(tx.put, lease), true
			tx.addEvent("repaired", lease, reason.Error())
		}
		r.View = l.buildView(tx.me, *tx.state)
		return nil
	})
	return r, err
}
