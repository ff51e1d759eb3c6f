package process

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnknownExit means that a process has ended and the kernel doesn't report how.
var ErrUnknownExit = errors.New("how it ended isn't known")

// Wait waits for the end of a process that isn't this process's child, and returns its status. The pidfd must have been
// opened while the process lived. The error Is ErrUnknownExit if the status can't be determined.
func Wait(proc string, pidfd, pid int) (unix.WaitStatus, error) {
	if err := waitEnded(pidfd, -1); err != nil {
		return 0, err
	}
	// PIDFD_INFO_EXIT has the status once the parent has waited for the process. Before that procfs has it.
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

// waitEnded waits until the process has ended. timeout is in milliseconds, -1 means for ever.
func waitEnded(pidfd, timeout int) error {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, timeout)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// exitInfo returns the status from the pidfd (Linux 6.15). It is false if the kernel doesn't have it.
func exitInfo(pidfd int) (unix.WaitStatus, bool) {
	i := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	err := unix.IoctlPidfdInfo(pidfd, &i)
	return unix.WaitStatus(i.Exit_code), err == nil && i.Mask&unix.PIDFD_INFO_EXIT != 0
}

// zombieStatus reads the exit code of a zombie from /proc/PID/stat. It is false for a process that this one may not trace: the kernel shows
// 0 for its code. Source: proc_pid_stat(5), exit_code; ptrace(2), PTRACE_MODE_READ_FSCREDS, which the links of /proc/PID/ns need, too.
func zombieStatus(proc string, pid int) (unix.WaitStatus, bool) {
	fields, err := readFields(proc, pid)
	if err != nil || len(fields) <= exitCodeField || fields[stateField] != "Z" {
		return 0, false
	}
	if _, err := os.Readlink(filepath.Join(proc, strconv.Itoa(pid), "ns/user")); errors.Is(err, fs.ErrPermission) {
		return 0, false
	}
	code, err := strconv.Atoi(fields[exitCodeField])
	return unix.WaitStatus(code), err == nil
}
