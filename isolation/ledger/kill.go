package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

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
		alive, err := lives(l.world, p)
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
