package process

import (
	"errors"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnknownExit: a process has ended, and its kernel doesn't tell how.
var ErrUnknownExit = errors.New("how it ended isn't known")

// Wait waits until the process of the descriptor has ended and says how, for one that
// isn't this process's child. The descriptor must have been made while it lived. The
// error Is ErrUnknownExit where that can't be told.
func Wait(proc string, pidfd, pid int) (unix.WaitStatus, error) {
	if err := waitEnded(pidfd, -1); err != nil {
		return 0, err
	}
	// The kernel keeps the exit code from when the parent waits for the process. Until then procfs
	// has it.
	for range 200 {
		if status, ok := exitInfo(pidfd); ok {
			return status, nil
		}
		if status, ok := zombieStatus(proc, pid); ok {
			return status, nil
		}
		time.Sleep(time.Millisecond)
	}
	return 0, ErrUnknownExit
}

// waitEnded waits until the process has ended; 0 doesn't wait.
func waitEnded(pidfd, timeout int) error {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, timeout)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// exitInfo asks the kernel (Linux 6.15).
func exitInfo(pidfd int) (unix.WaitStatus, bool) {
	i := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	err := unix.IoctlPidfdInfo(pidfd, &i)
	return unix.WaitStatus(i.Exit_code), err == nil && i.Mask&unix.PIDFD_INFO_EXIT != 0
}

// zombieStatus reads the exit code of a zombie from /proc/PID/stat, which needs root.
func zombieStatus(proc string, pid int) (unix.WaitStatus, bool) {
	fields, err := readFields(proc, pid)
	if err != nil || len(fields) <= exitCodeField || fields[stateField] != "Z" {
		return 0, false
	}
	code, err := strconv.Atoi(fields[exitCodeField])
	return unix.WaitStatus(code), err == nil
}
