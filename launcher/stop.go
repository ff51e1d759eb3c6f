package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// ErrRuns: what was asked for needs a task that has ended.
var ErrRuns = errors.New("it still runs")

// defaultGrace is how long a task has between its stop signal and SIGKILL if nobody says.
const defaultGrace = 10 * time.Second

// ForEver is longer than anybody waits, and can be added to a time.
const ForEver = 100 * 365 * 24 * time.Hour

// dying is how long what was killed may take to be gone: the kernel frees its memory,
// and whoever watches over it gives everything back.
const dying = 30 * time.Second

// Signal sends a signal to a task's first process. One that means the end (SIGKILL, or
// the task's own stop signal) also means that the task isn't started again.
func Signal(ctx context.Context, store tasks.Store, t tasks.Task, sig syscall.Signal) error {
	t, err := watched(ctx, store, t.ID)
	if err != nil {
		return err
	}
	final := sig == unix.SIGKILL || sig == stopSignal(t)
	between := t.State == tasks.Restarting // two lives: there is no process, and there need be none again
	if (t.State != tasks.Running || t.Life == nil) && (!between || !final) {
		return fmt.Errorf("task %s: %w: %s", t.Name, ErrNotRunning, t.Status)
	}
	if final {
		if err := markStopped(store, t); err != nil || between {
			return err
		}
	}
	if t.Gang != nil { // whose own first process holds the others up, and heeds nothing
		return signalRanks(store, t, sig)
	}
	if err := signalTo(store, t.Life.Init, sig); err != nil {
		return fmt.Errorf("task %s: %w", t.Name, err)
	}
	return nil
}

// markStopped says that a task isn't started again. A rank isn't without its gang.
func markStopped(store tasks.Store, t tasks.Task) error {
	if t.Member != nil {
		if err := store.MarkStopped(t.Member.Gang); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return store.MarkStopped(t.ID)
}

// watched is a task as it is now. One whose monitor was killed gets another first, if that
// is possible: how a task ends that nobody watches over is learned by nobody. One that was
// cut off before it had started is no more.
func watched(ctx context.Context, store tasks.Store, id string) (tasks.Task, error) {
	t, err := store.Task(id)
	// The new monitor can be killed, too.
	for err == nil && (t.Orphan() && adopt(ctx, store, "", id) == nil || t.Abandoned() && discard(ctx, store, id) == nil) {
		t, err = store.Task(id)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return t, fmt.Errorf("task %s: %w any more", id, ErrNotRunning)
	}
	return t, err
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
	if err := markStopped(store, t); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
		t, err := watched(ctx, s.store, s.id)
		switch {
		case errors.Is(err, ErrNotRunning), err == nil && ended(t):
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
		return ForEver
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
		if t.Gang != nil {
			return s.pushRanks(t, grace)
		}
		since, asked := s.asked[t.Life.Init]
		switch {
		case !asked && grace > 0 && (t.Member != nil || process.Heeds(or(s.store.Proc, "/proc"), t.Life.Init.PID, int(stopSignal(t)))):
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

// Remove removes what is kept of a task that has ended. With force, a task that runs is
// killed first. That it is gone already, or goes by itself, is no error.
func Remove(ctx context.Context, store tasks.Store, t tasks.Task, force bool) error {
	if t.Member != nil {
		if _, err := store.Record(t.Member.Gang); err == nil {
			return rankError(store, t, "rm")
		}
	}
	if force && t.Orphan() {
		// Nobody needs a monitor to be killed, and there may be no room for one.
		if done, err := removeOrphan(ctx, store, t); done {
			return err
		}
	}
	if !ended(t) {
		if !force {
			return fmt.Errorf("task %s: %w (%s)", t.Name, ErrRuns, t.Status)
		}
		if err := Stop(ctx, store, t, 0); err != nil {
			return err
		}
	}
	held, err := lockEnded(ctx, store.Dir(t.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("task %s: %w", t.Name, err)
	}
	if t.Exit == nil { // whoever watched over it was killed, and may have left a runtime at work
		return errors.Join(removeUnstarted(ctx, store, t.Record), held.Close())
	}
	return errors.Join(first(
		func() error { return removeRanks(ctx, store, t.Record) },
		func() error { return removeContainer(ctx, t.Record) },
		func() error { return store.Remove(t.ID) },
	), held.Close())
}

// removeOrphan ends and removes a task that has no monitor; it isn't done if it has one by
// now.
func removeOrphan(ctx context.Context, store tasks.Store, t tasks.Task) (done bool, err error) {
	held, err := lock.TryOpen(store.Dir(t.ID), lock.Exclusive)
	if err != nil {
		return false, nil //nolint:nilerr // who looks again finds out
	}
	if now, err := store.Task(t.ID); err != nil || !now.Orphan() {
		return false, held.Close()
	}
	return true, errors.Join(removeUnstarted(ctx, store, t.Record), held.Close())
}

// giveBack releases the lease of a task of which nobody else could: its launcher was
// killed, and its container is gone. The record is read anew, for it may have got the
// lease since it was looked at.
func giveBack(ctx context.Context, store tasks.Store, id string) error {
	r, err := store.Record(id)
	if err != nil || r.Lease == "" || r.Shared {
		return nil // it has none, or went by itself
	}
	l := ledger.Open(ledger.Options{Dir: store.State, Events: store.Data, Proc: store.Proc, Cgroup: r.CgroupMount})
	err = l.ReleaseIfDead(ctx, r.Lease)
	if errors.Is(err, ledger.ErrNotFound) || errors.Is(err, ledger.ErrLive) {
		return nil // it is somebody's business who still lives
	}
	return err
}

// lockEnded takes the lock of a task whose end was just written down: who did that
// holds it for another moment.
func lockEnded(ctx context.Context, dir string) (*os.File, error) {
	for last := time.Now().Add(dying); ; {
		held, err := lock.TryOpen(dir, lock.Exclusive)
		if !errors.Is(err, lock.ErrBusy) || time.Now().After(last) {
			return held, err
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
	return errors.Join(err, tree.RemoveAll(r.Cgroup))
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
