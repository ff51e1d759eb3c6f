package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CloseDescriptorsOnExec sets close-on-exec on all descriptors above 2. Go's own have it already;
// the process may have inherited others.
func CloseDescriptorsOnExec() error {
	const first = 3
	err := unix.CloseRange(first, ^uint(0)>>32, unix.CLOSE_RANGE_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) { // before Linux 5.11
		err = setCloseOnExec(first)
	}
	if err != nil {
		return fmt.Errorf("keep descriptors from programs: %w", err)
	}
	return nil
}

func setCloseOnExec(first int) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < first {
			continue
		}
		// A descriptor that was closed meanwhile was opened by Go, with close-on-exec.
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil && !errors.Is(err, unix.EBADF) {
			return err
		}
	}
	return nil
}
