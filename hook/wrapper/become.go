package wrapper

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Inherited is what the process was given and Go's runtime has changed before
// main: without the wrapper the real runtime would have got it unchanged. The
// zero value means that it isn't known.
type Inherited struct {
	Known bool
	// Ignored and Blocked are sets of signals, bit n-1 for signal n.
	Ignored, Blocked uint64
	// Closed are the descriptors of 0, 1 and 2 that weren't open, bit n for n.
	Closed uint64
}

// become replaces this process by the real runtime. It returns only on error.
//
// The caller is locked to the main thread: the signal that was asked for at the
// parent's death, and the signal mask, belong to a thread and not to a process.
// syscall.Exec puts the soft limit of open files back, which Go has raised.
func become(path string, args, env []string, in Inherited) error {
	in.restore()
	if err := syscall.Exec(path, argv(path, args), env); err != nil {
		return fmt.Errorf("execute OCI runtime %s: %w", path, err)
	}
	return nil
}

// restore gives signals and descriptors back as they came. exec then resets
// Go's handlers. What fails here was never there: the calls take fixed numbers.
func (in Inherited) restore() {
	if !in.Known {
		return
	}
	for sig := 1; sig <= 64; sig++ {
		if in.ignores(sig) {
			ignore(sig)
		}
	}
	for fd := range 3 {
		if in.Closed&(1<<fd) != 0 {
			unix.CloseOnExec(fd) // the runtime has opened /dev/null there
		}
	}
	in.block()
}

// block gives the calling thread the inherited signal mask, and returns what
// gives it back its own.
func (in Inherited) block() (undo func()) {
	if !in.Known {
		return func() {}
	}
	var own, mask unix.Sigset_t
	mask.Val[0] = in.Blocked
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &mask, &own)
	return func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &own, nil) }
}

func (in Inherited) ignores(sig int) bool { return in.Ignored&(1<<(sig-1)) != 0 }

// ignore sets a signal's disposition without telling Go's runtime, which knows
// no way to ignore all of them.
func ignore(sig int) {
	action := struct{ handler, flags, restorer, mask uint64 }{handler: 1} // SIG_IGN
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig),
		uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
}
