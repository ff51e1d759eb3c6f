package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Release removes a lease, whether its holder lives or not. Callers use it if they took the lease
// and didn't use it, or after they have ended the holder. Waiting requests are woken. A missing
// lease is not an error. The holder's processes are not touched.
func (l *Ledger) Release(ctx context.Context, id string) error {
	return l.releaseIf(ctx, id, func(*transaction, int, Lease) error { return nil })
}

// ReleaseIfDead removes a lease if its holder is dead by the rules of judge. It waits up to a second
// for a holder that was just killed. If the holder lives, the error Is ErrLive and the lease stays;
// a later acquire frees it once the holder is dead. A missing lease is not an error.
func (l *Ledger) ReleaseIfDead(ctx context.Context, id string) error {
	started := time.Now()
	for pause := time.Millisecond; ; pause *= 2 {
		making := false // the process that took the lease still creates the container, and isn't exiting
		err := l.releaseIf(ctx, id, func(tx *transaction, i int, lease Lease) error {
			v := judge(l.world, tx.me, lease)
			making = v.making
			if v.bound != nil {
				tx.bindLease(i, *v.bound)
			}
			if v.live {
				return liveError(id, v.why)
			}
			return nil
		})
		if !errors.Is(err, ErrLive) || making || time.Since(started) >= l.exitGrace {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// ReleaseUncreated removes a reserved lease whose container doesn't exist, whether the process that took
// it lives or not. The error Is ErrLive if the container exists by now, or processes are in its cgroup.
// A missing lease is not an error. The process that took the lease must check Bind's error before it
// starts the container.
func (l *Ledger) ReleaseUncreated(ctx context.Context, id string) error {
	return l.releaseIf(ctx, id, func(tx *transaction, _ int, lease Lease) error {
		if lease.State == Bound || findInit(l.world, lease) != nil || findProcesses(l.world, tx.me, lease) == yes {
			return liveError(id, "its container has been created")
		}
		return nil
	})
}

// ReleaseEmpty removes a lease whose cgroup is empty, whether the process that took it lives or not. The error Is ErrLive if processes
// are in the cgroup. A missing lease is not an error.
func (l *Ledger) ReleaseEmpty(ctx context.Context, id string) error {
	return l.releaseIf(ctx, id, func(tx *transaction, _ int, lease Lease) error {
		if findProcesses(l.world, tx.me, lease) == yes {
			return liveError(id, "processes are in its cgroup")
		}
		return nil
	})
}

// Reap releases the leases of dead holders, as Acquire does. It is idempotent, and takes the lock only
// if there is such a lease.
func (l *Ledger) Reap(ctx context.Context) error {
	v, err := l.View()
	if err != nil || !slices.ContainsFunc(v.Leases, func(s Status) bool { return !s.Live }) {
		return err
	}
	return l.updateInspected(ctx, nil, func(tx *transaction) error {
		if err := tx.readAllLeases(); err != nil {
			return err
		}
		tx.reapDead()
		return tx.checkInspected()
	})
}

// WithLeases calls f with the leases under the lock. Leases of dead holders are removed before, unless Options.Inspect is
// set: they then stay until they are inspected, and f gets them too.
func (l *Ledger) WithLeases(ctx context.Context, f func([]Lease) error) error {
	return l.update(ctx, func(tx *transaction) error {
		if err := tx.readAllLeases(); err != nil {
			return err
		}
		tx.reapDead()
		var all []Lease
		for _, r := range tx.leases {
			all = append(all, *r.v)
		}
		return f(all)
	})
}

// exitGrace is how long the processes of a killed container may take to exit: the parent of init has
// to reap it, and the kernel empties the cgroup last.
const exitGrace = time.Second

func (l *Ledger) releaseIf(ctx context.Context, id string, may func(*transaction, int, Lease) error) error {
	if err := checkDir(l.store.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return l.updateInspected(ctx, nil, func(tx *transaction) error {
		i := tx.findLease(id)
		if i < 0 {
			return nil
		}
		lease, err := tx.readLease(i)
		if err == nil {
			err = may(tx, i, lease)
		}
		if err != nil {
			return err
		}
		if tx.mayRemove(lease) {
			tx.removeLease(i, "released", "")
		}
		return tx.checkInspected()
	})
}

// liveError is ErrLive with the lease's id and the verdict's note, if there is one.
func liveError(id, why string) error {
	if why != "" {
		why = ": " + why
	}
	return fmt.Errorf("release lease %s: %w%s", id, ErrLive, why)
}

// Kill kills exactly this process, even if its pid is reused, and returns when it has exited or when
// ctx ends. A missing process is not an error. A process of another pid namespace is not killed,
// because its pid can't be verified here.
func (l *Ledger) Kill(ctx context.Context, p Process) error {
	me, err := l.world.Self()
	if err != nil {
		return err
	}
	if p.PID <= 0 || p.Namespace != me.Namespace {
		return nil
	}
	// The pidfd refers to one process; its start time is checked after it was opened.
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	for {
		alive, err := isAlive(l.world, p)
		if err != nil || !alive {
			return err
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", p.PID, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kill process %d: %w", p.PID, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
