package netlink

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Within calls f on a thread that is in the network namespace and ends in there. What
// f opens belongs to that namespace; so do the files of /proc/sys/net that f names.
func Within(ns *os.File, f func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock: the thread ends with this goroutine
		if unix.Gettid() == unix.Getpid() {
			// The main thread lives as long as the process. While it is held, there is another.
			err = Within(ns, f)
			runtime.UnlockOSThread()
			return
		}
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter the container's network namespace: %w", err)
			return
		}
		err = f()
	}()
	<-done
	return err
}
