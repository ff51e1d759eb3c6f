package lock

import (
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// stopDelay delays signals that stop this process, such as ^Z, while it holds a lock that others wait
// for. The kernel delivers them to the process, so there is one for each process. SIGSTOP and the freezers
// of cgroups cannot be delayed.
type stopDelay struct {
	mu   sync.Mutex
	free sync.Cond // no lock is held
	held int
}

//nolint:gochecknoglobals // dispositions of signals are the process's
var stopSignals = sync.OnceValue(func() *stopDelay {
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

// stopWhenFree stops the process by SIGSTOP in place of each signal: os/signal cannot have a
// caught signal act by default. It goes on when the process does.
func (d *stopDelay) stopWhenFree(signals <-chan os.Signal) {
	for range signals {
		d.mu.Lock()
		for d.held > 0 {
			d.free.Wait()
		}
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP) // a process may always signal itself
		d.mu.Unlock()
	}
}

// DelayStop delays signals that stop this process until resume is called. Calls may overlap. Programs that the
// process executes meanwhile have these signals in their default disposition.
func DelayStop() (resume func()) {
	d := stopSignals()
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
