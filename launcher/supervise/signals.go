package supervise

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Signals are the signals that come to this process while it launches a container and
// supervises it. Until Hold is called, a signal that asks a process to end interrupts the
// launch and all others are dropped; from then on they are for the container.
type Signals struct {
	// C receives the signals for the container. SIGWINCH is never among them: it says
	// that the size of this process's own terminal has changed, and Resized says so.
	C chan syscall.Signal
	// Resized has a value when the size has changed since it was last received from.
	Resized chan struct{}
	// Ready is closed when no signal that is taken over has its default action any more.
	Ready chan struct{}

	raw    chan os.Signal
	mu     sync.Mutex
	held   bool
	first  *Interrupted
	cancel context.CancelCauseFunc
}

// Interrupted says that a signal came before the task ran.
type Interrupted struct{ Signal syscall.Signal }

func (e *Interrupted) Error() string {
	return fmt.Sprintf("interrupted (%s) before the task ran", e.Signal)
}

// TakeSignals takes over this process's signals, all but those that are about the process
// itself (SIGCHLD, SIGPIPE, SIGURG, faults), that stop it at a terminal, or that it was
// started to ignore, as nohup does. When it returns it has those that ask to end. The others
// take as long as finding an image does; they follow in the background, up to Ready.
func TakeSignals() *Signals {
	s := newSignals()
	s.take(endingSignals()...)
	go func() {
		s.take(unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGVTALRM, unix.SIGWINCH,
			unix.SIGIO, unix.SIGPWR, unix.SIGXCPU, unix.SIGXFSZ)
		close(s.Ready)
		s.dispatchAll()
	}()
	return s
}

func newSignals() *Signals {
	return &Signals{
		C: make(chan syscall.Signal, 32), Resized: make(chan struct{}, 1), Ready: make(chan struct{}),
		raw: make(chan os.Signal, 32),
	}
}

func (s *Signals) take(list ...syscall.Signal) {
	for _, sig := range list {
		if !signal.Ignored(sig) {
			signal.Notify(s.raw, sig)
		}
	}
}

// endingSignals are those by which people and services ask a process to end.
func endingSignals() []syscall.Signal {
	return []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM}
}

// AsksToEnd says whether a signal asks a process to end.
func AsksToEnd(sig syscall.Signal) bool { return slices.Contains(endingSignals(), sig) }

// Context returns a context that ends when a signal interrupts the launch, with an
// *Interrupted as its cause.
func (s *Signals) Context(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel = cancel
	if s.first != nil {
		cancel(s.first)
	}
	return ctx
}

// Hold ends the time in which signals interrupt the launch. It returns the *Interrupted if
// one already has.
func (s *Signals) Hold() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first != nil {
		return s.first
	}
	s.held = true
	return nil
}

// Stop gives the signals their default actions back. It waits for Ready.
func (s *Signals) Stop() {
	<-s.Ready
	signal.Stop(s.raw)
	close(s.raw)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.cancel(nil)
	}
}

func (s *Signals) dispatchAll() {
	for sig := range s.raw {
		if sig, ok := sig.(syscall.Signal); ok {
			s.dispatch(sig)
		}
	}
}

// dispatch never blocks: a signal that nobody receives is dropped.
func (s *Signals) dispatch(sig syscall.Signal) {
	switch {
	case sig == unix.SIGWINCH:
		select {
		case s.Resized <- struct{}{}:
		default: // it is to be looked at anyway
		}
	case !s.interrupt(sig):
		select {
		case s.C <- sig:
		default:
		}
	}
}

// interrupt ends the launch with the signal. It returns false if the signal is for the container.
func (s *Signals) interrupt(sig syscall.Signal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held {
		return false
	}
	if s.first == nil && AsksToEnd(sig) {
		s.first = &Interrupted{Signal: sig}
		if s.cancel != nil {
			s.cancel(s.first)
		}
	}
	return true
}
