package sealed

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// OpenUnreadable returns a copy of the program at path in memory, which all users may execute, and users other than this process's may not read. The kernel lets
// no process of another user trace a process that executes it: such a user can't have it do anything else. Source: would_dump in fs/exec.c.
func OpenUnreadable(path string) (f *os.File, err error) {
	from, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer from.Close() // only read
	fd, err := unix.MemfdCreate("program", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("copy %s: %w", path, err)
	}
	written := os.NewFile(uintptr(fd), "program") //nolint:gosec // not negative
	_, err = io.Copy(written, from)
	if err = errors.Join(err, written.Chmod(0o111)); err == nil {
		f, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	if err = errors.Join(err, written.Close()); err != nil { // what is open for writing isn't executed
		return nil, fmt.Errorf("copy %s: %w", path, err)
	}
	return f, nil
}
