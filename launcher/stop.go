package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/cgroup"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// ErrRuns: what was asked for needs a task that has ended.
var ErrRuns = errors.New("it still runs")

// ErrCodeUnknown: the task has ended, and nobody kept its exit code.
var ErrCodeUnknown = errors.New("its exit code isn't known")

// defaultGrace is how long a task has between its stop signal and SIGKILL if nobody says.
const defaultGrace = 10 * time.Second

// forEver is longer than anybody waits, and can be added to a time.
const forEver = 100 * 365 * 24 * time.Hour

// dying is how long what was killed may take to be gone: the kernel frees its memory,
// and whoever watches over it gives everything back.
const dying = 30 * time.Second

// Signal sends a signal to a task's first process. One that means the end (SIGKILL, or
// the task's own stop signal) also means that the task isn't started again.
func Signal(store tasks.Store, t tasks.Task, sig syscall.Signal) error {
	if t.State != tasks.Running || t.Life == nil {
		return fmt.Errorf("task %s: %w: %s", t.Name, ErrNotRunning, t.Status)
	}
	if sig == unix.SIGKILL || sig == stopSignal(t) {
		if err := store.MarkStopped(t.ID); err != nil {
			return err
		}
	}
	if err := signalTo(store, t.Life.Init, sig); err != nil {
		return fmt.Errorf("task %s: %w", t.Name, err)
	}
	return nil
}

// signalTo makes sure that it is just this process that gets the signal.
func signalTo(store tasks.Store, p tasks.Process, sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%w any more", ErrNotRunning)
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	if !store.Lives(p) {
		return fmt.Errorf("%w any more", ErrNotRunning)
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

func stopSignal(t tasks.Task) syscall.Signal {
	if t.StopSignal != 0 {
		return syscall.Signal(t.StopSignal)
	}
	return unix.SIGTERM
}

// Stop ends a task for good: its stop signal, SIGKILL when the grace is over, and then
// it waits until everything was given back. A negative grace is the task's own. That
// the task has ended already is no error. A first process that would not even notice
// the signal, as the kernel has it for those that don't handle it, is killed at once.
func Stop(ctx context.Context, store tasks.Store, t tasks.Task, grace time.Duration) error {
	if ended(t) {
		return nil
	}
	if grace < 0 {
		grace = graceOf(t)
	}
	if err := store.MarkStopped(t.ID); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return stopping{store: store, id: t.ID, name: t.Name, asked: map[tasks.Process]time.Time{}}.run(ctx, grace)
}

// ended says that nothing of a task is left that could be ended.
func ended(t tasks.Task) bool { return t.State == tasks.Exited || t.State == tasks.Lost }

// stopping is one call of Stop. A task can change while it is stopped: its container is
// made, or made again. Each process that is found is asked once, and killed when its
// time is over.
type stopping struct {
	store    tasks.Store
	id, name string
	asked    map[tasks.Process]time.Time
}

func (s stopping) run(ctx context.Context, grace time.Duration) error {
	last := time.Now().Add(grace + dying)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		t, err := s.store.Task(s.id)
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && ended(t):
			return nil
		case err != nil:
			return err
		case time.Now().After(last):
			return fmt.Errorf("task %s: it was killed and isn't gone after %v: %s", s.name, dying, t.Status)
		}
		if err := s.push(t, grace); err != nil && !errors.Is(err, ErrNotRunning) {
			return fmt.Errorf("task %s: %w", s.name, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// graceOf is the task's own; one that is negative never ends.
func graceOf(t tasks.Task) time.Duration {
	switch {
	case t.Grace == 0:
		return defaultGrace
	case t.Grace < 0:
		return forEver
	}
	return time.Duration(t.Grace)
}

// push does what is to be done to the task as it is now.
func (s stopping) push(t tasks.Task, grace time.Duration) error {
	switch t.State {
	case tasks.Created: // its launcher gives up what it has begun
		return s.once(t.Maker, unix.SIGTERM)
	case tasks.Running:
		if t.Life == nil {
			return nil
		}
		since, asked := s.asked[t.Life.Init]
		switch {
		case !asked && grace > 0 && heeds(t.Life.Init.PID, stopSignal(t)):
			return s.once(t.Life.Init, stopSignal(t))
		case !asked, time.Since(since) >= grace:
			s.asked[t.Life.Init] = time.Now()
			return signalTo(s.store, t.Life.Init, unix.SIGKILL)
		}
	}
	return nil
}

func (s stopping) once(p tasks.Process, sig syscall.Signal) error {
	if _, asked := s.asked[p]; asked {
		return nil
	}
	s.asked[p] = time.Now()
	return signalTo(s.store, p, sig)
}

// heeds says whether a signal does anything to the first process of a container: the
// kernel drops what that neither handles, ignores nor blocks (to wait for it).
func heeds(pid int, sig syscall.Signal) bool {
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		if name != "SigIgn" && name != "SigCgt" && name != "SigBlk" {
			continue
		}
		mask, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err == nil && mask&(1<<(sig-1)) != 0 {
			return true
		}
	}
	return false
}

// Wait waits for a task's end and returns its exit code. Of a task that keeps nothing,
// the code is that of the process that waited for it, which kernels before 6.15 don't
// tell: then the error Is ErrCodeUnknown.
func Wait(ctx context.Context, store tasks.Store, t tasks.Task) (int, error) {
	id, name, keeper := t.ID, t.Name, -1
	for {
		if t.Exit != nil {
			return t.Exit.Code, nil
		}
		if t.State == tasks.Lost {
			return 255, fmt.Errorf("task %s: %w: %s", name, ErrCodeUnknown, t.Why)
		}
		fd, err := unix.PidfdOpen(watcher(t).PID, 0)
		if err == nil && store.Lives(watcher(t)) {
			if keeper >= 0 {
				_ = unix.Close(keeper) // nothing was written
			}
			keeper = fd
			if err := awaitEnd(ctx, fd); err != nil {
				return 255, err
			}
		} else if err == nil {
			_ = unix.Close(fd) // nothing was written
		}
		t, err = store.Task(id)
		if errors.Is(err, fs.ErrNotExist) {
			code, ok := exitOf(keeper)
			if !ok {
				return 255, fmt.Errorf("task %s: %w: it has ended, and was removed", name, ErrCodeUnknown)
			}
			return code, nil
		}
		if err != nil {
			return 255, err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return 255, err
		}
	}
}

// watcher is the process that ends when all of the task has.
func watcher(t tasks.Task) tasks.Process {
	if t.Life != nil && t.Life.Monitor.PID > 0 {
		return t.Life.Monitor
	}
	return t.Maker
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// awaitEnd waits for the end of a process.
func awaitEnd(ctx context.Context, pidfd int) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 100)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for a process: %w", err)
		case n > 0:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
}

// Remove removes what is kept of a task that has ended. With force, a task that runs is
// killed first. That it is gone already, or goes by itself, is no error.
func Remove(ctx context.Context, store tasks.Store, t tasks.Task, force bool) error {
	if !ended(t) {
		if !force {
			return fmt.Errorf("task %s: %w (%s)", t.Name, ErrRuns, t.Status)
		}
		if err := Stop(ctx, store, t, 0); err != nil {
			return err
		}
	}
	lock, err := lockEnded(ctx, store.Dir(t.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("task %s: %w", t.Name, err)
	}
	err = errors.Join(removeContainer(ctx, t.Record), store.Remove(t.ID))
	return errors.Join(err, lock.Close())
}

// lockEnded takes the lock of a task whose end was just written down: who did that
// holds it for another moment.
func lockEnded(ctx context.Context, dir string) (*os.File, error) {
	for last := time.Now().Add(dying); ; {
		lock, err := lockTask(dir, unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(last) {
			return lock, err
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// removeContainer removes what the runtime may know of a container whose watcher was
// killed, and its cgroup.
func removeContainer(ctx context.Context, r tasks.Record) error {
	tree, err := cgroup.Detect(r.CgroupMount)
	if err != nil {
		return err
	}
	if _, e := os.Lstat(filepath.Join(r.RuntimeRoot, r.ID)); e == nil {
		cmd := exec.CommandContext(ctx, r.Runtime, "--root", r.RuntimeRoot, "delete", "--force", r.ID)
		cmd.Env, cmd.Dir = []string{"PATH=" + programs}, "/"
		if out, e := cmd.CombinedOutput(); e != nil {
			err = fmt.Errorf("delete container %s: %w: %s", r.ID, e, oneLine(string(out)))
		}
	}
	return errors.Join(err, tree.Remove(r.Cgroup))
}

// exitOf says how the process of a pidfd ended that somebody else has buried, as a
// shell does. Kernels before 6.15 don't tell.
func exitOf(pidfd int) (code int, ok bool) {
	if pidfd < 0 {
		return 0, false
	}
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	for range 100 { // it may be dead and not yet buried
		err := unix.IoctlPidfdInfo(pidfd, &info)
		if err == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0 {
			status := syscall.WaitStatus(info.Exit_code)
			if status.Signaled() {
				return 128 + int(status.Signal()), true
			}
			return status.ExitStatus(), true
		}
		time.Sleep(5 * time.Millisecond)
		info.Mask = unix.PIDFD_INFO_EXIT
	}
	return 0, false
}
