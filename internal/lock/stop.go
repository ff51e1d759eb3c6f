package lock

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
)

// stopDelay delays signals that stop this process, such as SIGTSTP of ^Z, while it holds a lock. Dispositions of signals
// belong to the process, so each process has one stopDelay. SIGSTOP and the freezers of cgroups can't be delayed.
type stopDelay struct {
	mu   sync.Mutex
	free sync.Cond // held is 0
	held int
}

// stopSignals catches the signals that stop a process, once. It returns nil in an orphaned process group without a
// terminal, as under engines: catching signals costs two threads, and as much time as an update of the ledger.
//
//nolint:gochecknoglobals // dispositions of signals are the process's
var stopSignals = sync.OnceValue(func() *stopDelay {
	if !hasTerminal() && isOrphaned() {
		return nil // the kernel ignores these signals
	}
	d := &stopDelay{}
	d.free.L = &d.mu
	var caught []os.Signal
	for _, s := range []os.Signal{unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU} {
		if !signal.Ignored(s) {
			caught = append(caught, s)
		}
	}
	if len(caught) > 0 { // none would mean all
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, caught...)
		go d.stopWhenFree(signals)
	}
	return d
})

// stopWhenFree stops the process with SIGSTOP for each signal, once no lock is held: os/signal can't execute the default
// action of a caught signal. As with the default action, an orphaned process group isn't stopped.
func (d *stopDelay) stopWhenFree(signals <-chan os.Signal) {
	for range signals {
		d.mu.Lock()
		for d.held > 0 {
			d.free.Wait()
		}
		if !isOrphaned() {
			stopProcess()
		}
		d.mu.Unlock()
	}
}

// stopProcess stops the process and returns once it is continued: a signal to the calling thread is delivered before the
// system call returns.
func stopProcess() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP) // a process may always signal itself
}

// isOrphaned reports whether this process group is orphaned: no ancestor in this session, such as a shell with job
// control, is of another process group and could continue it. There the kernel ignores stop signals, except
// SIGSTOP. If that can't be determined, the group counts as orphaned.
func isOrphaned() bool {
	session, err := unix.Getsid(0)
	if err != nil {
		return true
	}
	group := unix.Getpgrp()
	for pid := os.Getppid(); pid > 0; pid, _ = process.Parent("/proc", pid) { // 0 on errors
		if s, err := unix.Getsid(pid); err != nil || s != session {
			return true
		}
		if g, err := unix.Getpgid(pid); err != nil || g != group {
			return err != nil
		}
	}
	return true
}

// hasTerminal reports whether this process has a controlling terminal, at which ^Z can be typed. If that can't be
// determined, it has one.
func hasTerminal() bool {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd) // nothing was written
	}
	return !errors.Is(err, unix.ENXIO)
}

// DelayStop delays signals that stop this process until resume is called. Calls may overlap. Programs that the
// process executes meanwhile have these signals in their default disposition.
func DelayStop() (resume func()) {
	d := stopSignals()
	if d == nil {
		return func() {}
	}
	d.mu.Lock()
	d.held++
	d.mu.Unlock()
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.held--; d.held == 0 {
			d.free.Broadcast()
		}
	})
}
