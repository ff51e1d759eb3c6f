package containerd

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher"
)

// signals are those that come to this process. Until hold, one that asks to end
// interrupts; from then on all go to the task.
type signals struct {
	task chan syscall.Signal
	raw  chan os.Signal

	mu     sync.Mutex
	held   bool
	first  *launcher.Interrupted
	cancel context.CancelCauseFunc
}

// listen takes the signals that package launcher takes.
func listen() *signals {
	s := &signals{task: make(chan syscall.Signal, 32), raw: make(chan os.Signal, 32)}
	for _, sig := range append(enders(), unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGVTALRM, unix.SIGWINCH,
		unix.SIGIO, unix.SIGPWR, unix.SIGXCPU, unix.SIGXFSZ) {
		if !signal.Ignored(sig) {
			signal.Notify(s.raw, sig)
		}
	}
	go s.sort()
	return s
}

func enders() []syscall.Signal {
	return []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM}
}

// interrupts returns a context that ends when a signal interrupts.
func (s *signals) interrupts(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel = cancel
	if s.first != nil {
		cancel(s.first)
	}
	return ctx
}

// hold ends the time in which signals interrupt; it fails if one already has.
func (s *signals) hold() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first != nil {
		return s.first
	}
	s.held = true
	return nil
}

func (s *signals) stop() {
	signal.Stop(s.raw)
	close(s.raw)
}

func (s *signals) sort() {
	for sig := range s.raw {
		if sig, ok := sig.(syscall.Signal); ok && !s.interrupt(sig) {
			select {
			case s.task <- sig:
			default: // nobody waits any more
			}
		}
	}
}

// interrupt says whether the signal was used up by ending the launch.
func (s *signals) interrupt(sig syscall.Signal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held {
		return false
	}
	if s.first == nil && slices.Contains(enders(), sig) {
		s.first = &launcher.Interrupted{Signal: sig}
		if s.cancel != nil {
			s.cancel(s.first)
		}
	}
	return true
}
