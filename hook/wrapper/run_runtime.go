package wrapper

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// execRuntime replaces this process by the real runtime. It returns only on error.
//
// The caller is locked to the main thread, whose parent-death signal and signal mask the
// runtime inherits. The soft limit of open files is the one that this process was
// started with: syscall.Exec restores it. Go's runtime has changed three things before
// main, and they stay changed: signals that were ignored have the default disposition,
// but for SIGHUP, SIGINT and those of job control; signals that end a program, SIGCHLD
// and SIGURG are not blocked; standard descriptors that were closed are /dev/null.
func execRuntime(path string, args, env []string) error {
	if err := syscall.Exec(path, runtimeArgs(path, args), env); err != nil {
		return fmt.Errorf("execute OCI runtime %s: %w", path, err)
	}
	return nil
}

// runRuntime runs the real runtime as a child and returns its exit code: 128 plus the
// signal's number if a signal ended it. The child has this process's environment,
// descriptors, limits and signals. Signals that ask for an end are forwarded to it, and
// SIGKILL ends it if this process dies.
func runRuntime(path string, args, env []string) (int, error) {
	signals := make(chan os.Signal, 32)
	if all := forwardedSignals(); len(all) > 0 { // Notify without signals would relay all of them
		signal.Notify(signals, all...)
	}
	pid, err := syscall.ForkExec(path, runtimeArgs(path, args), &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 1, fmt.Errorf("start OCI runtime %s: %w", path, err)
	}
	p := &process{pid: pid}
	done := make(chan struct{})
	defer close(done)
	go p.forwardSignals(signals, done)
	status, err := p.waitAndReap()
	if err != nil {
		return 1, fmt.Errorf("wait for the OCI runtime: %w", err)
	}
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}

// forwardedSignals returns the signals with which users and engines end a runtime that can
// still clean up, without those that were ignored when this process started. Every other
// signal that ends a process ends this one, and with it the runtime.
func forwardedSignals() []os.Signal {
	var all []os.Signal
	for _, s := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM} {
		if !signal.Ignored(s) {
			all = append(all, s)
		}
	}
	return all
}

// process is a child. Package os is not used: its first process in a program costs a
// second one, by which it finds out what the kernel can do.
type process struct {
	pid    int
	mu     sync.Mutex
	reaped bool // pid may belong to another process
}

func (p *process) forwardSignals(signals <-chan os.Signal, done <-chan struct{}) {
	for {
		select {
		case s := <-signals:
			p.sendSignal(s)
		case <-done:
			return
		}
	}
}

func (p *process) sendSignal(s os.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sig, ok := s.(syscall.Signal); ok && !p.reaped {
		_ = syscall.Kill(p.pid, sig) // an error means that the child has ended
	}
}

// waitAndReap returns when the child has ended. It reaps the child under the lock, so that no
// signal is sent to a pid that the kernel has given to another process.
func (p *process) waitAndReap() (status syscall.WaitStatus, err error) {
	retry := func(call func() error) {
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = call()
		}
	}
	retry(func() error { return unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil) })
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reaped = true
	retry(func() error { _, err := syscall.Wait4(p.pid, &status, 0, nil); return err })
	return status, err
}

// runtimeArgs is the command line of the real runtime: this process's, with the
// runtime's path in the place of this program's name.
func runtimeArgs(path string, args []string) []string {
	return append([]string{path}, args[min(1, len(args)):]...)
}
