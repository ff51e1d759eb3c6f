package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// interrupted is why the program's context ended.
type interrupted struct{ signal syscall.Signal }

func (i interrupted) Error() string { return fmt.Sprintf("interrupted (%s)", i.signal) }

// withInterrupts returns a context that ends at the first signal that asks to end,
// with interrupted as its cause.
func withInterrupts() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, withoutIgnored(unix.SIGINT, unix.SIGTERM, unix.SIGHUP)...)
	go func() {
		if s, ok := <-signals; ok {
			cancel(interrupted{s.(syscall.Signal)}) // there are no others on this system
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		cancel(nil)
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

// forwardedSignals are the signals that alloc passes on: those that people and job
// runners send. Those that stop a job at a terminal act on berth itself as they
// act on the command, or the shell would wait for it.
func forwardedSignals() []os.Signal {
	return withoutIgnored(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGALRM, unix.SIGVTALRM, unix.SIGIO, unix.SIGPWR, unix.SIGXCPU, unix.SIGXFSZ)
}

// forwardSignals passes signals on. A terminal sends its own to all processes in its
// foreground, to the command too: it must not get them twice.
func forwardSignals(signals <-chan os.Signal, to *os.Process) {
	typed := []os.Signal{unix.SIGINT, unix.SIGQUIT}
	for s := range signals {
		if slices.Contains(typed, s) && inForeground() {
			continue
		}
		_ = to.Signal(s) // it may have ended meanwhile
	}
}

// inForeground reports whether this process is in the foreground of its terminal.
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
