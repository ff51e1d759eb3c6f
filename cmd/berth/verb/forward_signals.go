package verb

import (
	"cmp"
	"context"
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

// RunSelfWhenReady is RunSelf for a process that loses signals at first. They are passed on when wait has returned, which is called in the background unless
// it is nil.
func RunSelfWhenReady(ctx context.Context, cmd exec.Cmd, atDeath syscall.Signal, wait func(child *os.Process)) error {
	cmd.Path = cmp.Or(cmd.Path, "/proc/self/exe")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = atDeath
	return RunProcess(ctx, func() (*os.Process, error) {
		if err := cmd.Start(); err != nil {
			return nil, WithCode(ExitBerth, fmt.Errorf("start a process for the command: %w", err))
		}
		return cmd.Process, nil
	}, wait)
}

// RunProcess passes signals on to the child process that start starts, and waits for its end. The error has the exit code of the child: its code,
// or 128 plus the signal. wait is that of RunSelfWhenReady.
func RunProcess(ctx context.Context, start func() (*os.Process, error), wait func(child *os.Process)) error {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, ForwardedSignals()...) // never stopped: this process may have to release a lease
	SettleInterrupts(ctx)
	if err := ctx.Err(); err != nil { // a signal came before the process was started
		return err
	}
	child, err := start()
	if err != nil {
		return err
	}
	go func() {
		if wait != nil {
			wait(child)
		}
		forwardSignals(signals, child)
	}()
	state, err := child.Wait()
	if err != nil {
		return err
	}
	return ChildExit(state)
}

// ChildExit returns an error with the exit code of a child: its code, or 128 plus the signal.
func ChildExit(state *os.ProcessState) error {
	status := state.Sys().(syscall.WaitStatus)
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
