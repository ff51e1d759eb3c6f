package supervise

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// A signal before the task runs ends the launch; afterwards it is for the task.
func TestSignals(t *testing.T) {
	s := newSignals()
	close(s.Ready)
	ctx := s.Context(t.Context())
	if s.dispatch(unix.SIGUSR1); ctx.Err() != nil || len(s.C) > 0 {
		t.Error("a signal that doesn't ask to end ended the launch, or was passed on")
	}
	held := newSignals()
	close(held.Ready)
	err := held.Hold()
	if held.dispatch(unix.SIGTERM); err != nil || len(held.C) != 1 {
		t.Errorf("held: %v, %d signals", err, len(held.C))
	}
	var i *Interrupted
	if s.dispatch(unix.SIGINT); ctx.Err() == nil || !errors.As(s.Hold(), &i) || i.Signal != unix.SIGINT {
		t.Errorf("interrupt: context %v, hold %v", ctx.Err(), i)
	}
}

// SIGWINCH tells of the size of this process's terminal, and is never passed on.
func TestSignalsResized(t *testing.T) {
	s := newSignals()
	close(s.Ready)
	if err := s.Hold(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.dispatch(unix.SIGWINCH)
	}
	if len(s.Resized) != 1 || len(s.C) != 0 {
		t.Errorf("%d sizes, %d signals", len(s.Resized), len(s.C))
	}
}
