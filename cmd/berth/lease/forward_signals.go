package lease

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// forwardSignals passes signals on. A terminal sends its own to all processes in its
// foreground, to the command too: it must not get them twice.
func forwardSignals(signals <-chan os.Signal, to *os.Process) {
	typed := []os.Signal{unix.SIGINT, unix.SIGQUIT}
	for s := range signals {
		if slices.Contains(typed, s) && inForeground() {
			continue
		}
		_ = to.Signal(s) // it may have ended meanwhile
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
