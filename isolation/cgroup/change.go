package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// Create creates the cgroup at path and its parents. It is idempotent, and enables no
// controllers.
//
// A cgroup that another process is removing is created again once it is gone: while the
// kernel removes it, mkdir reports that it exists and open that it doesn't.
func (h Hierarchy) Create(path string) error {
	dir, err := h.Dir(path)
	if err != nil {
		return err
	}
	for range 1000 {
		err = os.MkdirAll(dir, 0o755)
		if err == nil || !errors.Is(err, fs.ErrExist) && !isGone(err) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("create cgroup: %w", err)
	}
	return nil
}

// Join moves a process, with all its threads, into the cgroup. A pid of 0 means
// the calling process.
func (h Hierarchy) Join(path string, pid int) error {
	dir, err := h.Dir(path)
	if err != nil {
		return err
	}
	if err := writeControl(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
		return fmt.Errorf("move process %d into cgroup %s: %w", pid, path, err)
	}
	return nil
}

// OpenDir returns the cgroup's directory, for syscall.SysProcAttr.CgroupFD: a child
// that starts inside, with no moment outside. Version 2 only: on version 1 the
// error Is errors.ErrUnsupported, and [Hierarchy.Join] has to do.
func (h Hierarchy) OpenDir(path string) (*os.File, error) {
	if h.Version != V2 {
		return nil, fmt.Errorf("start in cgroup %s: version 1: %w", path, errors.ErrUnsupported)
	}
	dir, err := h.Dir(path)
	if err != nil {
		return nil, err
	}
	return os.OpenFile(dir, unix.O_DIRECTORY|unix.O_PATH|unix.O_CLOEXEC, 0)
}

// Kill ends every process in the cgroup and below it, and returns when none
// lives or when ctx ends. On version 1 it thaws them. A cgroup that doesn't exist is no error.
func (h Hierarchy) Kill(ctx context.Context, path string) error {
	dir, err := h.Dir(path)
	if err != nil {
		return err
	}
	if dir == filepath.Clean(h.Root) {
		return fmt.Errorf("kill everything: %w: %q", ErrPath, path)
	}
	// cgroup.kill (Linux 5.14) can't be outrun by forks. Without it, rounds of
	// signals go on until nobody is left.
	if err := writeControl(filepath.Join(dir, "cgroup.kill"), "1"); err != nil && !errors.Is(err, fs.ErrNotExist) && !isGone(err) {
		return fmt.Errorf("kill cgroup %s: %w", path, err)
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if err := h.killOnce(path); err != nil {
			return fmt.Errorf("kill cgroup %s: %w", path, err)
		}
		h.thaw(path)
		alive, err := h.Populated(path)
		if err != nil || !alive {
			return err
		}
		if err := sleepContext(ctx, pause); err != nil {
			return fmt.Errorf("kill cgroup %s: %w", path, err)
		}
	}
}

// thaw thaws the cgroup at path and those below it on version 1, where a frozen process doesn't end. A
// frozen parent keeps them frozen; then Kill goes on until ctx ends. On version 2 the kernel ends frozen processes.
func (h Hierarchy) thaw(path string) {
	if h.Version == V2 {
		return
	}
	_ = walkDirectory(h.controllerDir("freezer", path), func(dir string) error {
		if state, err := smallfile.String(filepath.Join(dir, "freezer.state")); err == nil && state != "THAWED" {
			_ = writeControl(filepath.Join(dir, "freezer.state"), "THAWED") // Kill tries again
		}
		return nil
	})
}

// killOnce sends SIGKILL once to all. Each process is held by a pidfd before it is
// listed a second time, so that a reused pid outside of the cgroup isn't hit.
func (h Hierarchy) killOnce(path string) error {
	first, err := h.PIDs(path)
	if err != nil {
		return err
	}
	held := make(map[int]int, len(first))
	defer func() {
		for _, fd := range held {
			_ = unix.Close(fd) // a pidfd holds no data
		}
	}()
	for _, pid := range first {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			held[pid] = fd
		} else if !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("hold process %d: %w", pid, err)
		}
	}
	second, err := h.PIDs(path)
	if err != nil {
		return err
	}
	for pid, fd := range held {
		if !slices.Contains(second, pid) {
			continue
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal process %d: %w", pid, err)
		}
	}
	return nil
}

// Remove removes the cgroup and those below it. The kernel keeps a cgroup busy for a
// moment after its last process has ended, so Remove tries until ctx ends. A cgroup with
// live processes is an error that Is unix.EBUSY, at once; a missing cgroup is none.
func (h Hierarchy) Remove(ctx context.Context, path string) error {
	err := h.retryRemove(ctx, path, func() bool {
		alive, err := h.Populated(path)
		return !alive || err != nil
	})
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", path, err)
	}
	return nil
}

// retryRemove removes the cgroup and those below it. While they are busy it tries again,
// as long as again says so and ctx lives.
func (h Hierarchy) retryRemove(ctx context.Context, path string, again func() bool) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := h.walkCgroups(path, func(dir string) error {
			if err := unix.Rmdir(dir); err != nil && !isGone(err) {
				return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
			}
			return nil
		})
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) || !again() {
			return err
		}
		if serr := sleepContext(ctx, pause); serr != nil {
			return fmt.Errorf("%w (%w)", err, serr)
		}
	}
}

func sleepContext(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// A threaded cgroup doesn't list processes; those are listed where its domain is.
func isThreaded(err error) bool { return errors.Is(err, unix.EOPNOTSUPP) }

func unlessThreaded(err error) error {
	if isThreaded(err) {
		return nil
	}
	return err
}
