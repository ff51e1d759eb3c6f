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
	"strings"
	"time"

	"golang.org/x/sys/unix"
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
		if err == nil || !errors.Is(err, fs.ErrExist) && !IsGone(err) {
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

// OpenDir returns the cgroup's directory, for syscall.SysProcAttr.CgroupFD: the child is in the
// cgroup from its first instruction. Version 2 only: on version 1 the error Is
// errors.ErrUnsupported; use [Hierarchy.Join] there.
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

// Kill kills every process in the cgroup and below it. It returns when all have ended, or when ctx
// ends. On version 1 it thaws them. A cgroup that doesn't exist is no error.
func (h Hierarchy) Kill(ctx context.Context, path string) error {
	dir, err := h.Dir(path)
	if err != nil {
		return err
	}
	if dir == filepath.Clean(h.Root) {
		return fmt.Errorf("kill everything: %w: %q", ErrPath, path)
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		// cgroup.kill (Linux 5.14) also kills processes that are forked meanwhile, and those of other users in a cgroup that
		// was delegated to this one. Without it, signals are sent repeatedly until the cgroup is empty.
		err := writeControl(filepath.Join(dir, "cgroup.kill"), "1")
		if errors.Is(err, fs.ErrNotExist) {
			err = h.killOnce(path)
		}
		if err != nil && !IsGone(err) {
			return fmt.Errorf("kill cgroup %s: %w", path, err)
		}
		h.Thaw(path)
		alive, err := h.Populated(path)
		if err != nil || !alive {
			return err
		}
		if err := sleepContext(ctx, pause); err != nil {
			return fmt.Errorf("kill cgroup %s: %w", path, err)
		}
	}
}

// Thaw thaws the cgroup at path and those below it on version 1, where a frozen process doesn't end. A
// frozen parent keeps them frozen. On version 2 it does nothing: the kernel ends frozen processes. A
// process inside can freeze itself again, so callers repeat Thaw until their processes have ended.
func (h Hierarchy) Thaw(path string) {
	if h.Version == V2 {
		return
	}
	_ = walkDirectory(h.controllerDir("freezer", path), func(m member) error {
		if state, err := m.readFile("freezer.state"); err == nil && strings.TrimSpace(string(state)) != "THAWED" {
			_ = m.writeFile("freezer.state", "THAWED") // the caller repeats
		}
		return nil
	})
}

// killOnce sends SIGKILL once to all processes that it lists. It holds few of them at a time: a container can have more
// processes than this one can have files open.
func (h Hierarchy) killOnce(path string) error {
	pids, err := h.PIDs(path)
	for err == nil && len(pids) > 0 {
		pids, err = h.killSome(path, pids)
	}
	return err
}

// killSome holds at most maxHeld processes at a time, and keeps spareFiles file descriptors for its second list of
// processes.
const (
	maxHeld    = 512
	spareFiles = 8
)

// killSome sends SIGKILL to the first of the processes, and returns the others. Each process is held by a pidfd before
// the cgroup's processes are listed again, so that a reused pid outside of the cgroup isn't hit.
func (h Hierarchy) killSome(path string, pids []int) (rest []int, err error) {
	var held, spare []int // pidfds
	closeAll := func(fds []int) {
		for _, fd := range fds {
			_ = unix.Close(fd) // a pidfd holds no data
		}
	}
	defer func() { closeAll(held); closeAll(spare) }()
	for range spareFiles {
		fd, err := unix.PidfdOpen(os.Getpid(), 0)
		if err != nil {
			return nil, fmt.Errorf("reserve file descriptors: %w", err)
		}
		spare = append(spare, fd)
	}
	var heldPIDs []int
	for i, pid := range pids {
		if len(held) == maxHeld {
			rest = pids[i:]
			break
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.EMFILE) && len(held) > 0 {
			rest = pids[i:]
			break
		}
		if err == nil {
			held, heldPIDs = append(held, fd), append(heldPIDs, pid)
		} else if !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EINVAL) {
			return nil, fmt.Errorf("hold process %d: %w", pid, err)
		}
	}
	closeAll(spare)
	spare = nil
	still, err := h.PIDs(path)
	if err != nil {
		return nil, err
	}
	for i, pid := range heldPIDs {
		if _, ok := slices.BinarySearch(still, pid); !ok { // the list is sorted
			continue
		}
		if err := unix.PidfdSendSignal(held[i], unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return nil, fmt.Errorf("signal process %d: %w", pid, err)
		}
	}
	return rest, nil
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
		err := h.walkCgroups(path, func(m member) error { return ignoreGone(m.removeIfEmpty()) })
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
