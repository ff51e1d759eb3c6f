package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// ForEver is a grace period without an end. It is small enough to be added to a time.
const ForEver = 100 * 365 * 24 * time.Hour

// Signal sends a signal to a task's first process, or to that of each rank of a gang. After SIGKILL or
// the task's own stop signal the task isn't restarted. SIGKILL also ends a task that is frozen, on cgroup version 1 once
// Signal has thawed it.
func Signal(ctx context.Context, store tasks.Store, t tasks.Task, sig syscall.Signal) error {
	t, err := currentTask(ctx, store, t.ID)
	if err != nil {
		return err
	}
	final := sig == unix.SIGKILL || sig == stopSignal(t)
	betweenLives := t.State == tasks.Restarting // the task has no process
	if t.State == tasks.Waiting && final {
		// SIGTERM makes the launcher leave the queue.
		return sendSignal(store, t.Maker, unix.SIGTERM)
	}
	if !betweenLives || !final {
		if t, err = runningTask(ctx, store, t); err != nil {
			return fmt.Errorf("task %s: %w", t.Name, err)
		}
	}
	if final {
		if err := markStopped(store, t); err != nil || betweenLives {
			return err
		}
	}
	if t.Gang != nil { // the gang's init only holds the ranks' namespaces
		return signalRanks(ctx, store, t, sig)
	}
	if err := sendSignal(store, t.Life.Init, sig); err != nil {
		return fmt.Errorf("task %s: %w", t.Name, err)
	}
	if sig != unix.SIGKILL {
		return nil
	}
	return awaitThawed(ctx, store, t, []tasks.Process{t.Life.Init})
}

// signalRanks sends a signal to the first process of each rank that runs.
func signalRanks(ctx context.Context, store tasks.Store, g tasks.Task, sig syscall.Signal) error {
	all, err := store.Ranks(*g.Gang)
	var signaled []tasks.Process
	for _, t := range all {
		if t.State != tasks.Running || t.Life == nil {
			continue
		}
		switch e := sendSignal(store, t.Life.Init, sig); {
		case e == nil:
			signaled = append(signaled, t.Life.Init)
		case !errors.Is(e, ErrNotRunning):
			err = errors.Join(err, fmt.Errorf("task %s: %w", t.Name, e))
		}
	}
	if sig == unix.SIGKILL {
		err = errors.Join(err, awaitThawed(ctx, store, g, signaled))
	}
	return err
}

// awaitThawed thaws the task's cgroups until its killed processes have ended. See [cgroup.Hierarchy.Thaw]: on cgroup
// version 2 that isn't necessary, and awaitThawed doesn't wait.
func awaitThawed(ctx context.Context, store tasks.Store, t tasks.Task, killed []tasks.Process) error {
	cgroups, err := cgroup.Detect(t.CgroupMount)
	if err != nil || cgroups.Version == cgroup.V2 {
		return err
	}
	last := time.Now().Add(killTimeout)
	for wait := time.Millisecond; slices.ContainsFunc(killed, store.Lives); wait = min(2*wait, supervise.ThawInterval) {
		if time.Now().After(last) {
			return unendedError(store, t)
		}
		cgroups.Thaw(t.FreezableCgroup())
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
	return nil
}

// unendedError returns the error for a task whose killed processes haven't ended after killTimeout.
func unendedError(store tasks.Store, t tasks.Task) error {
	return fmt.Errorf("task %s: it was killed and hasn't ended after %v: %s", t.Name, killTimeout, cmp.Or(describeTracer(store, t), t.String()))
}

func stopSignal(t tasks.Task) syscall.Signal {
	return supervise.TermsOf(t.Record, 0).Signal()
}

// graceOf returns the task's own grace.
func graceOf(t tasks.Task) time.Duration {
	if g := supervise.TermsOf(t.Record, 0).GracePeriod(); g >= 0 {
		return g
	}
	return ForEver
}

// Stop ends a task without a restart: it sends the stop signal, sends SIGKILL after the grace period,
// and waits until the task's launcher or monitor has released everything. A negative grace means the
// task's own. A task that has already ended is not an error. A first process without a handler for
// the stop signal is killed at once, because the kernel would drop the signal.
func Stop(ctx context.Context, store tasks.Store, t tasks.Task, grace time.Duration) error {
	if t.State == tasks.Exited {
		return nil
	}
	// A lost task is marked, too: a new monitor could restart it.
	if grace < 0 {
		grace = graceOf(t)
	}
	if err := markStopped(store, t); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return stop{store: store, id: t.ID, name: t.Name, asked: map[tasks.Process]time.Time{}}.run(ctx, grace)
}

// stop is one call of Stop. The task can change meanwhile: its container may be created or restarted.
// Each process that is found gets the stop signal once, and SIGKILL after the grace period. asked has
// the times of the stop signals; the zero Process stands for the unknown processes of a task whose
// run.json is lost.
type stop struct {
	store    tasks.Store
	id, name string
	asked    map[tasks.Process]time.Time
}

func (s stop) run(ctx context.Context, grace time.Duration) error {
	last := time.Now().Add(grace + killTimeout)
	var ended time.Time // when the task was first seen without processes, zero before
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		t, err := currentTask(ctx, s.store, s.id)
		switch {
		case errors.Is(err, ErrNotRunning), err == nil && hasEnded(t):
			return nil
		case err != nil:
			return err
		case t.State == tasks.Stopping && ended.IsZero():
			ended = time.Now()
		case time.Now().After(last), !ended.IsZero() && time.Since(ended) > killTimeout:
			return unendedError(s.store, t)
		}
		if err := checkSupervisor(s.store, t); err != nil {
			return err
		}
		if err := s.endProcess(t, grace); err != nil && !errors.Is(err, ErrNotRunning) {
			return fmt.Errorf("task %s: %w", s.name, err)
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// endProcess sends the signal to a task's process that is due in the task's present state: the stop
// signal, SIGKILL, or none.
func (s stop) endProcess(t tasks.Task, grace time.Duration) error {
	switch {
	case t.State == tasks.Created, t.State == tasks.Waiting: // the launcher cleans up
		return s.signalOnce(t.Maker, unix.SIGTERM)
	case t.State != tasks.Running:
		return nil
	case t.Life == nil:
		return s.endUnknown(t, grace)
	case t.Gang != nil:
		return s.endRanks(t, grace)
	}
	init := t.Life.Init
	since, asked := s.asked[init]
	switch {
	case !asked && grace > 0 && handlesSignal(s.store, t, stopSignal(t)):
		return s.signalOnce(init, stopSignal(t))
	case !asked, time.Since(since) >= grace:
		s.asked[init] = time.Now()
		err := sendSignal(s.store, init, unix.SIGKILL)
		return errors.Join(err, thawTask(t))
	}
	return nil
}

// unknownLife is how long run.json may be missing normally: the monitor writes it after the
// container's first process has started.
const unknownLife = 2 * time.Second

// endUnknown kills all processes in the cgroup of a task whose run.json is lost, after the grace
// period. It sends no stop signal, because the first process is unknown.
func (s stop) endUnknown(t tasks.Task, grace time.Duration) error {
	since, found := s.asked[tasks.Process{}]
	switch {
	case !found:
		s.asked[tasks.Process{}] = time.Now()
		return nil
	case time.Since(since) < max(grace, unknownLife):
		return nil
	}
	cgroups, err := cgroup.Detect(t.CgroupMount)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // run calls endUnknown again
	defer cancel()
	if err := cgroups.Kill(ctx, t.Cgroup+"/container"); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// thawTask thaws the cgroups of a task whose first process was killed: see [cgroup.Hierarchy.Thaw].
func thawTask(t tasks.Task) error {
	cgroups, err := cgroup.Detect(t.CgroupMount)
	if err != nil {
		return err
	}
	cgroups.Thaw(t.FreezableCgroup())
	return nil
}

// describeTracer names the debugger that keeps a process of the task from ending, "" without one.
func describeTracer(store tasks.Store, t tasks.Task) string {
	cgroups, err := cgroup.Detect(t.CgroupMount)
	if err != nil {
		return ""
	}
	pids, err := cgroups.PIDs(t.Cgroup)
	if err != nil {
		return ""
	}
	return process.DescribeTracer(cmp.Or(store.Proc, "/proc"), pids)
}

// endRanks calls endProcess for each rank of a gang.
func (s stop) endRanks(g tasks.Task, grace time.Duration) error {
	all, err := s.store.Ranks(*g.Gang)
	for _, t := range all {
		if e := s.endProcess(t, grace); e != nil && !errors.Is(e, ErrNotRunning) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// handlesSignal reports whether the kernel delivers a signal to a task's first process. A rank isn't
// pid 1 of its namespace, so it gets every signal.
func handlesSignal(store tasks.Store, t tasks.Task, sig syscall.Signal) bool {
	return t.Member != nil || process.HandlesSignal(cmp.Or(store.Proc, "/proc"), t.Life.Init.PID, int(sig))
}

func (s stop) signalOnce(p tasks.Process, sig syscall.Signal) error {
	if _, asked := s.asked[p]; asked {
		return nil
	}
	s.asked[p] = time.Now()
	return sendSignal(s.store, p, sig)
}
