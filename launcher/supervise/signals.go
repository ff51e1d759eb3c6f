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

// Signals are the signals that this process receives while it launches and supervises a container.
// Until Hold is called, a signal that asks to end interrupts the launch, and all others are dropped.
// From then on all signals are for the container.
type Signals struct {
	// C receives the signals for the container, without SIGWINCH: that signal is about this
	// process's own terminal and is reported by Resized.
	C chan syscall.Signal
	// Resized has a value if the terminal's size has changed since the last receive.
	Resized chan struct{}
	// Ready is closed when all signals that TakeSignals catches are caught.
	Ready chan struct{}

	raw    chan os.Signal
	mu     sync.Mutex
	held   bool
	first  *Interrupted
	cancel context.CancelCauseFunc
}

// Interrupted means that a signal came before the task ran.
type Interrupted struct{ Signal syscall.Signal }

func (e *Interrupted) Error() string {
	return fmt.Sprintf("interrupted (%s) before the task ran", e.Signal)
}

// TakeSignals catches this process's signals, except those about the process itself (SIGCHLD,
// SIGPIPE, SIGURG, faults), those that stop it at a terminal, and those that it has inherited as
// ignored, as under nohup. When it returns, the signals that ask to end are caught. Catching the
// others takes as long as finding an image, so that happens in the background until Ready.
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

// endingSignals returns the signals by which people and services ask a process to end.
func endingSignals() []syscall.Signal {
	return []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM}
}

// AsksToEnd reports whether a signal asks a process to end.
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

// Hold makes further signals go to the container instead of interrupting the launch. It returns the
// *Interrupted if a signal has already interrupted the launch. It waits for Ready: a signal that isn't
// caught would end this process and leave the container.
func (s *Signals) Hold() error {
	<-s.Ready
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first != nil {
		return s.first
	}
	s.held = true
	return nil
}

// Stop restores the signals' default actions. It waits for Ready.
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

// dispatch never blocks. A signal is dropped if C is full.
func (s *Signals) dispatch(sig syscall.Signal) {
	switch {
	case sig == unix.SIGWINCH:
		select {
		case s.Resized <- struct{}{}:
		default: // a value is pending
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
