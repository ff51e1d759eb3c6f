package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// Release gives a lease back and wakes those who wait, whether its holder lives or
// not: it is for whoever took the lease and didn't use it, or ended the holder
// itself. Releasing one that is gone is no error. Nothing is done to the holder.
func (l *Ledger) Release(ctx context.Context, id string) error {
	return l.releaseIf(ctx, id, func(*transaction, int, Lease) error { return nil })
}

// ReleaseIfDead gives a lease back if its holder is dead by the rules by which the
// dead are found: that somebody says so, or that a runtime has forgotten the
// container, proves nothing. Who was just killed takes a moment to die, and is
// waited for. The error Is ErrLive if the holder lives on: then the lease stays,
// until an acquire finds it dead. Releasing one that is gone is no error.
func (l *Ledger) ReleaseIfDead(ctx context.Context, id string) error {
	started := time.Now()
	for pause := time.Millisecond; ; pause *= 2 {
		making := false // then it isn't on its way out
		err := l.releaseIf(ctx, id, func(tx *transaction, i int, lease Lease) error {
			v := judge(l.world, tx.me, lease)
			making = v.making
			if v.bound != nil {
				tx.bindLease(i, *v.bound)
			}
			if v.live {
				return &liveError{id, v.why}
			}
			return nil
		})
		if !errors.Is(err, ErrLive) || making || time.Since(started) >= l.dying {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// dying is how long a container that was killed may take to be gone: init's
// parent has to be told, and the kernel empties the cgroup last.
const dying = time.Second

func (l *Ledger) releaseIf(ctx context.Context, id string, may func(*transaction, int, Lease) error) error {
	if err := checkDir(l.store.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return l.update(ctx, func(tx *transaction) error {
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
		tx.removeLease(i, "released", "")
		return nil
	})
}

// liveError is ErrLive with what is remarkable about that life.
type liveError struct{ id, why string }

func (e *liveError) Error() string {
	if e.why == "" {
		return fmt.Sprintf("release lease %s: %v", e.id, ErrLive)
	}
	return fmt.Sprintf("release lease %s: %v: %s", e.id, ErrLive, e.why)
}

func (e *liveError) Unwrap() error { return ErrLive }

// Kill ends just this process, not another one that has its pid now, and returns
// when it is gone or when ctx ends. One that is gone already is no error; one of
// another pid namespace can't be told from others, and is left alone.
func (l *Ledger) Kill(ctx context.Context, p Process) error {
	me, err := l.world.Self()
	if err != nil {
		return err
	}
	if p.PID <= 0 || p.Namespace != me.Namespace {
		return nil
	}
	// The descriptor holds the process; it is looked at afterwards.
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
