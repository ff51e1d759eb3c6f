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

// StartWithoutRuntime starts a created container of crun without running crun. Since 1.8, crun's start writes a
// byte into a FIFO beside the container's state, on which the container's first process waits, and
// removes the FIFO; its absence means that the container was started. This function does the same, in a
// tenth of the time of a crun process.
//
// It returns false and changes nothing if the runtime has to be called: it isn't crun, or the container
// has poststart hooks. spec is the path of the container's config.json.
//
// The FIFO is removed last. A process that is killed before that leaves a container that seems not to
// be started; StartWithoutRuntime returns true for it, and for one whose first process has died.
func (r Runtime) StartWithoutRuntime(id, spec string) (begun bool, err error) {
	fifo := filepath.Join(r.Root, id, "exec.fifo")
	if !r.isCrun(id) || mayHaveHooks(spec, "poststart") {
		return false, nil
	}
	fd, err := unix.Open(fifo, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	switch {
	case errors.Is(err, unix.ENXIO): // the first process has started or died
		return true, removeFIFO(fifo)
	case err != nil:
		return false, nil // crun reports why
	}
	defer func() { _ = unix.Close(fd) }() // a write to a FIFO isn't delayed
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return false, nil
	}
	if _, err := unix.Write(fd, []byte{0}); err != nil && !errors.Is(err, unix.EPIPE) {
		return false, fmt.Errorf("start container %s: %w", id, err)
	}
	return true, removeFIFO(fifo)
}

// isCrun reports whether the container was created by crun: no other runtime has a file of this name.
func (r Runtime) isCrun(id string) bool {
	_, err := os.Lstat(filepath.Join(r.Root, id, "status"))
	return err == nil && r.Name() == "crun"
}

// mayHaveHooks reports whether a spec may have hooks of this kind.
func mayHaveHooks(spec, kind string) bool {
	text, err := os.ReadFile(spec)
	return err != nil || bytes.Contains(text, []byte(kind))
}

func removeFIFO(fifo string) error {
	if err := os.Remove(fifo); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("start container: %w", err)
	}
	return nil
}
