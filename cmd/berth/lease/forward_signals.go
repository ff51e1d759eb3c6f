package lease

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

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
