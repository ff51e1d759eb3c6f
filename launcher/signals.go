package launcher

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// signals are those that come to this process while it launches a task. Until
// hold is called, one that asks to end interrupts the launch; from then on, all
// go to the task.
type signals struct {
	task  chan syscall.Signal // for the task
	ready chan struct{}       // closed when no signal that is taken has its default action any more

	raw    chan os.Signal
	mu     sync.Mutex
	held   bool
	first  *Interrupted
	cancel context.CancelCauseFunc
}

// listen takes the process's signals, all but those that tell about the process
// itself (SIGCHLD, SIGPIPE, SIGURG, faults) or stop it at a terminal. When it
// returns it has those that ask to end; each of the others takes as long as finding
// an image, and is there when ready is closed.
func listen() *signals {
	s := &signals{task: make(chan syscall.Signal, 32), raw: make(chan os.Signal, 32), ready: make(chan struct{})}
	s.take(enders()...)
	go func() {
		s.take(unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGVTALRM, unix.SIGWINCH,
			unix.SIGIO, unix.SIGPWR, unix.SIGXCPU, unix.SIGXFSZ)
		close(s.ready)
		s.sort()
	}()
	return s
}

func (s *signals) take(list ...syscall.Signal) {
	for _, sig := range list {
		if !signal.Ignored(sig) { // nohup and its like are meant for the task too
			signal.Notify(s.raw, sig)
		}
	}
}

// enders are the signals that ask a process to end.
func enders() []syscall.Signal {
	return []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM}
}

// interrupts returns a context that ends when a signal interrupts the launch.
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

// stop gives the signals back to their default actions.
func (s *signals) stop() {
	<-s.ready
	signal.Stop(s.raw)
	close(s.raw)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.cancel(nil)
	}
}

func (s *signals) sort() {
	for sig := range s.raw {
		if sig, ok := sig.(syscall.Signal); ok && !s.interrupt(sig) {
			select {
			case s.task <- sig:
			default: // nobody waits any more, or is hopelessly behind
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
	if s.first == nil && asksToEnd(sig) {
		s.first = &Interrupted{Signal: sig}
		if s.cancel != nil {
			s.cancel(s.first)
		}
	}
	return true
}

func asksToEnd(sig syscall.Signal) bool { return slices.Contains(enders(), sig) }

// ends says that a signal's default action ends a process.
func ends(sig syscall.Signal) bool { return sig != unix.SIGWINCH && sig != unix.SIGKILL }
