package lock

import (
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

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

// stopWhenFree stops the process as the signals would have. It goes on when the process does.
func (d *stopDelay) stopWhenFree(signals <-chan os.Signal) {
	runtime.LockOSThread() // which stopBy signals
	for s := range signals {
		d.mu.Lock()
		for d.held > 0 {
			d.free.Wait()
		}
		stopBy(s.(syscall.Signal)) // there are no others on this system
		d.mu.Unlock()
	}
}

// disposition is struct sigaction of the kernel, on amd64 and arm64; the zero value is the default.
type disposition struct{ handler, flags, restorer, mask uintptr }

// stopBy has a signal of this thread's own act by default, which os/signal cannot: after signal.Stop and
// signal.Reset the signal would be ignored. A parent sees by which signal the process was stopped.
func stopBy(s syscall.Signal) {
	var before, byDefault disposition
	if setDisposition(s, &byDefault, &before) != 0 {
		return
	}
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), s) // a process may always signal itself
	setDisposition(s, &before, nil)
}

func setDisposition(s syscall.Signal, to, before *disposition) syscall.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(before)), 8, 0, 0)
	return errno
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
