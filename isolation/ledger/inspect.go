package ledger

import (
	"context"
	"errors"
)

// A device can still be open when its holder is dead: a process that isn't the holder's may have got a
// descriptor from it. Options.Inspect searches for such processes. That takes milliseconds or more, so it is done without
// the lock: a transaction that would remove a lease that wasn't inspected leaves it, and is repeated after the inspection.
// A process that is killed meanwhile leaves a lease with a dead holder, which the next transaction inspects.

// errAgain means that the transaction has to be repeated, after an inspection of the leases in transaction.pending. Callers of
// this package never see it.
var errAgain = errors.New("the transaction has to be repeated")

// mayRemove reports whether a lease can be removed now, and notes it for the inspection if not.
func (tx *transaction) mayRemove(l Lease) bool {
	if tx.ledger.inspect == nil || tx.inspected[l.ID] {
		return true
	}
	tx.pending = append(tx.pending, l)
	return false
}

// checkInspected returns errAgain if leases wait for their inspection.
func (tx *transaction) checkInspected() error {
	if len(tx.pending) > 0 {
		return errAgain
	}
	return nil
}

// updateInspected is update for an f that returns checkInspected's error. If that is errAgain, the leases are
// inspected and f is called again. renew, if not nil, is called after each inspection.
func (l *Ledger) updateInspected(ctx context.Context, renew func() error, f func(*transaction) error) error {
	inspected := map[string]bool{}
	for {
		var pending []Lease
		err := l.update(ctx, func(tx *transaction) error {
			tx.inspected = inspected
			err := f(tx)
			pending = tx.pending
			return err
		})
		if !errors.Is(err, errAgain) {
			return err
		}
		if len(pending) > 0 {
			if err := l.inspect(ctx, pending); err != nil {
				return err
			}
			l.step("inspected")
		}
		for _, lease := range pending {
			inspected[lease.ID] = true
		}
		if renew != nil {
			if err := renew(); err != nil {
				return err
			}
		}
	}
}
