package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// RunSelf runs this program with other arguments, or the one of cmd.Path, and passes signals on. The error has the exit code of the process. It gets the
// signal atDeath when this process is killed.
func RunSelf(ctx context.Context, cmd exec.Cmd, atDeath syscall.Signal) error {
	return RunSelfWhenReady(ctx, cmd, atDeath, nil)
}

// RunSelfWhenReady is RunSelf for a process that loses signals at first. They are passed on when something can be read from ready.
func RunSelfWhenReady(ctx context.Context, cmd exec.Cmd, atDeath syscall.Signal, ready *os.File) error {
	cmd.Path = cmp.Or(cmd.Path, "/proc/self/exe")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = atDeath
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, ForwardedSignals()...) // never stopped: this process may have to release a lease
	SettleInterrupts(ctx)
	if err := ctx.Err(); err != nil { // a signal came before the process was started
		return err
	}
	if err := cmd.Start(); err != nil {
		return WithCode(ExitBerth, fmt.Errorf("start a process for the command: %w", err))
	}
	go func() {
		if ready != nil {
			_, _ = ready.Read(make([]byte, 1)) // this process has its other end, too: there are no errors
		}
		forwardSignals(signals, cmd.Process)
	}()
	return childExit(cmd.Wait())
}

// childExit returns an error with the exit code of a child: its code, or 128 plus the signal.
func childExit(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	status := exit.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return ExitError{Code: 128 + int(status.Signal()), Signal: status.Signal()}
	}
	return WithCode(status.ExitStatus(), nil)
}

// forwardSignals passes signals on to a process. A signal of the terminal isn't passed on
// while this process is in the foreground, because the terminal has sent it to the command too.
func forwardSignals(signals <-chan os.Signal, to *os.Process) {
	typed := []os.Signal{unix.SIGINT, unix.SIGQUIT}
	for s := range signals {
		if slices.Contains(typed, s) && inForeground() {
			continue
		}
		_ = to.Signal(s) // the process may have ended
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
