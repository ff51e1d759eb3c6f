package ociruntime

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Begin starts a container that was made, without crun where that comes to the same. What
// crun's own start does, in all versions since 1.8, is to write a byte into a pipe beside the
// container's state, on which the container's first process waits, and to remove the pipe, by
// which crun tells a container that was made from one that runs. It is a tenth of what the
// process costs that does so.
//
// It is false, and nothing has happened, where the runtime has to do it: it isn't crun, or
// the container has hooks that are run by who starts it. spec is the container's.
//
// The pipe is removed last: who is killed in between leaves a container that seems not to
// have been started. Begin on that is true, as it is on one whose first process has died.
func (r Runtime) Begin(id, spec string) (begun bool, err error) {
	fifo := filepath.Join(r.Root, id, "exec.fifo")
	if !r.isCrun(id) || hooked(spec) {
		return false, nil
	}
	fd, err := unix.Open(fifo, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	switch {
	case errors.Is(err, unix.ENXIO): // nobody waits any more
		return true, remove(fifo)
	case err != nil:
		return false, nil // and crun says why
	}
	defer func() { _ = unix.Close(fd) }() // a pipe keeps nothing back
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return false, nil
	}
	if _, err := unix.Write(fd, []byte{0}); err != nil && !errors.Is(err, unix.EPIPE) {
		return false, fmt.Errorf("start container %s: %w", id, err)
	}
	return true, remove(fifo)
}

// isCrun says whether the container is crun's: no other runtime keeps a file of this name.
func (r Runtime) isCrun(id string) bool {
	_, err := os.Lstat(filepath.Join(r.Root, id, "status"))
	return err == nil && r.Name() == "crun"
}

// hooked says whether a spec may have hooks that are run when its container is started.
func hooked(spec string) bool {
	text, err := os.ReadFile(spec)
	return err != nil || bytes.Contains(text, []byte("poststart"))
}

func remove(fifo string) error {
	if err := os.Remove(fifo); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("start container: %w", err)
	}
	return nil
}
