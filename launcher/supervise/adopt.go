package supervise

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// adoption makes this process a subreaper while runtimes run whose container's process is to become its
// child. Afterwards other orphans don't become its children.
var adoption struct { //nolint:gochecknoglobals // the kernel keeps one such flag for each process
	sync.Mutex
	runtimes int
	before   bool // this process was a subreaper before the first of them
}

// beginAdoption is called before a runtime is started, and endAdoption when it has ended.
func beginAdoption() error {
	adoption.Lock()
	defer adoption.Unlock()
	if adoption.runtimes == 0 {
		var is int32
		if _, _, errno := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&is)), 0); errno != 0 {
			return fmt.Errorf("become a subreaper: %w", errno)
		}
		adoption.before = is != 0
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	adoption.runtimes++
	return nil
}

func endAdoption() {
	adoption.Lock()
	defer adoption.Unlock()
	if adoption.runtimes--; adoption.runtimes == 0 && !adoption.before {
		_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) // never fails
	}
}
