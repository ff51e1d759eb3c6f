package verb

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Interrupted is why the program's context ended.
type Interrupted struct{ Signal syscall.Signal }

func (i Interrupted) Error() string { return fmt.Sprintf("interrupted (%s)", i.Signal) }

// interruptsKey is the key of the context's value that ends the collection of signals.
type interruptsKey struct{}

// WithInterrupts returns a context that ends at the first signal that asks to end,
// with interrupted as its cause.
func WithInterrupts() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, withoutIgnored(unix.SIGINT, unix.SIGTERM, unix.SIGHUP)...)
	go func() {
		for s := range signals {
			cancel(Interrupted{s.(syscall.Signal)}) // there are no others on this system
		}
		close(done)
	}()
	settle := sync.OnceFunc(func() {
		signal.Stop(signals) // it waits for signals that are being delivered
		close(signals)
		<-done
	})
	return context.WithValue(ctx, interruptsKey{}, settle), func() {
		settle()
		cancel(nil)
	}
}

// SettleInterrupts ends the collection of signals for a context of WithInterrupts. Afterwards the
// context has ended if a signal came before, and signals have their default actions, unless the
// caller has asked for them before.
func SettleInterrupts(ctx context.Context) {
	if settle, ok := ctx.Value(interruptsKey{}).(func()); ok {
		settle()
	}
}

// withoutIgnored leaves out signals that this process was started with ignored, as nohup
// does: signal.Notify would stop ignoring them.
func withoutIgnored(signals ...syscall.Signal) (list []os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			list = append(list, s)
		}
	}
	return list
}

// ForwardedSignals are the signals that alloc passes on: those that people and job
// runners send. Those that stop a job at a terminal act on berth itself as they
// act on the command, or the shell would wait for it.
func ForwardedSignals() []os.Signal {
	return withoutIgnored(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGALRM, unix.SIGVTALRM, unix.SIGIO, unix.SIGPWR, unix.SIGXCPU, unix.SIGXFSZ)
}

// InterruptCounter holds the times of the last two presses of ^C.
type InterruptCounter [2]time.Time

// IsThird: pressed three times within two seconds, ^C isn't only meant for the task.
func (i *InterruptCounter) IsThird(now time.Time) bool {
	first := i[0]
	i[0], i[1] = i[1], now
	return !first.IsZero() && now.Sub(first) < 2*time.Second
}
