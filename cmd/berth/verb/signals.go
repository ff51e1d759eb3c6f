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

// Interrupted is the cause of a context of [WithInterrupts] that a signal has ended.
type Interrupted struct{ Signal syscall.Signal }

func (i Interrupted) Error() string { return fmt.Sprintf("interrupted (%s)", i.Signal) }

// interruptsKey is the context key of the function that ends the collection of signals.
type interruptsKey struct{}

// WithInterrupts returns a context that ends at the first signal that ends a program, with
// [Interrupted] as its cause.
func WithInterrupts() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, WithoutIgnored(unix.SIGINT, unix.SIGTERM, unix.SIGHUP)...)
	go func() {
		for s := range signals {
			cancel(Interrupted{s.(syscall.Signal)}) // all signals are of this type on Linux
		}
		close(done)
	}()
	settle := sync.OnceFunc(func() {
		signal.Stop(signals) // Stop waits for signals that are being delivered
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

// WithoutIgnored leaves out signals that were ignored when this process started, as under
// nohup: signal.Notify would end that.
func WithoutIgnored(signals ...syscall.Signal) (list []os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			list = append(list, s)
		}
	}
	return list
}

// ForwardedSignals returns the signals that alloc, attach and a gang in the foreground pass on.
// Signals that stop a job at a terminal aren't among them: they have to stop berth too, or the
// shell would wait for it.
func ForwardedSignals() []os.Signal {
	return WithoutIgnored(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGALRM, unix.SIGVTALRM, unix.SIGIO, unix.SIGPWR, unix.SIGXCPU, unix.SIGXFSZ)
}

// InterruptCounter has the times of the last two SIGINTs. Its zero value has none.
type InterruptCounter [2]time.Time

// IsThird records a SIGINT and reports whether it is the third within two seconds: then the
// user wants to end berth and not only the task.
func (i *InterruptCounter) IsThird(now time.Time) bool {
	first := i[0]
	i[0], i[1] = i[1], now
	return !first.IsZero() && now.Sub(first) < 2*time.Second
}
