// Package control acts on existing tasks of any launcher: it signals, stops, awaits and removes them,
// runs commands in them, starts new monitors, and removes what killed launchers have left.
//
// Any number of processes may do so concurrently, beside the launcher or monitor of a task. Processes
// are identified by pid and start time and signalled by a pidfd, so that a reused pid is never
// signalled. A task's directory is locked before it is removed; the task's launcher or monitor holds
// the lock as long as it lives.
//
// The package launches no task; package launcher does, and begins with Sweep.
package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Errors that callers branch on.
var (
	// ErrRuns means that the task must have ended.
	ErrRuns = errors.New("it still runs")
	// ErrNotRunning means that the task has no running container.
	ErrNotRunning = errors.New("it isn't running")
	// ErrCodeUnknown means that the task has ended and its exit code is unknown.
	ErrCodeUnknown = errors.New("its exit code isn't known")
	// ErrHalted means that a task's monitor or launcher is stopped by a signal or frozen.
	ErrHalted = errors.New("is stopped or frozen")
	// ErrRank means that the action applies to a whole gang only.
	ErrRank = errors.New("it is a rank of a gang")
)

// killTimeout bounds the wait for a task that was killed: the kernel frees its memory, and the
// monitor releases everything.
const killTimeout = 30 * time.Second

// currentTask returns the present state of a task. If the task's monitor was killed, it first starts
// another one if possible, because only a monitor records the task's end. A task whose launcher was
// killed before the task started is removed. The error Is ErrNotRunning if there is no such task.
func currentTask(ctx context.Context, store tasks.Store, id string) (tasks.Task, error) {
	t, err := store.Task(id)
	// The new monitor can be killed as well.
	for err == nil && (t.Orphan() && startNewMonitor(ctx, store, "", id) == nil || t.Abandoned() && removeAbandoned(ctx, store, id) == nil) {
		t, err = store.Task(id)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return t, fmt.Errorf("task %s: %w any more", id, ErrNotRunning)
	}
	return t, err
}

// initTimeout is how long runningTask waits for a runtime that is starting a task.
const initTimeout = 10 * time.Second

// runningTask returns the present state of a task whose first process is known. A runtime that runs a task in
// the foreground writes the pid only after it has started the container: runningTask waits for it. The error
// Is ErrNotRunning if the task doesn't run.
func runningTask(ctx context.Context, store tasks.Store, t tasks.Task) (tasks.Task, error) {
	for end := time.Now().Add(initTimeout); t.State == tasks.Running && t.Life == nil && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return t, context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
		var err error
		if t, err = currentTask(ctx, store, t.ID); err != nil {
			return t, err
		}
	}
	switch {
	case t.State != tasks.Running:
		return t, fmt.Errorf("%w: %s", ErrNotRunning, t.Status)
	case t.Life == nil:
		return t, fmt.Errorf("%w: its runtime is still starting it", ErrNotRunning)
	}
	return t, nil
}

// checkSupervisor returns an error that Is ErrHalted if all processes of a task have ended, and the
// monitor or launcher that has to release everything is stopped or frozen.
func checkSupervisor(store tasks.Store, t tasks.Task) error {
	if t.State != tasks.Stopping && t.State != tasks.Restarting {
		return nil
	}
	kind, p := "monitor", t.Maker
	if t.Life != nil && t.Life.Monitor.PID > 0 {
		p = t.Life.Monitor
	}
	if !t.Detached {
		kind = "launcher"
	}
	proc := cmp.Or(store.Proc, "/proc")
	switch {
	case !store.Lives(p):
		return nil
	case process.Stopped(proc, p.PID):
		return fmt.Errorf("task %s has ended, and its %s %w: kill -CONT %d has it go on, and after kill -9 %d the next berth command does its work", t.Name, kind, ErrHalted, p.PID, p.PID)
	}
	if path := process.FrozenCgroup(proc, t.CgroupMount, p.PID); path != "" {
		return fmt.Errorf("task %s has ended, and its %s %w, process %d in cgroup %s: thaw that", t.Name, kind, ErrHalted, p.PID, path)
	}
	return nil
}

// hasEnded reports whether no process of a task is left.
func hasEnded(t tasks.Task) bool { return t.State == tasks.Exited || t.State == tasks.Lost }

// markStopped marks a task, and for a rank its gang too, so that it isn't restarted.
func markStopped(store tasks.Store, t tasks.Task) error {
	if t.Member != nil {
		if err := store.MarkStopped(t.Member.Gang); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return store.MarkStopped(t.ID)
}

// openProcess opens a process. The error Is ErrNotRunning if the process has ended.
func openProcess(store tasks.Store, p tasks.Process) (*supervise.Process, error) {
	opened, err := supervise.OpenProcess(store.Proc, p.PID)
	if store.Lives(p) {
		if opened != nil {
			opened.SendDenied = store.SendDenied
		}
		return opened, err
	}
	opened.Close()
	return nil, fmt.Errorf("%w any more", ErrNotRunning)
}

// sendSignal sends a signal to a process. The error Is ErrNotRunning if the process has ended.
func sendSignal(store tasks.Store, p tasks.Process, sig syscall.Signal) error {
	opened, err := openProcess(store, p)
	if err != nil {
		return err
	}
	defer opened.Close()
	return opened.Send(sig)
}

// lockTask locks a task's directory. It waits for up to killTimeout, because a process that has just
// recorded the task's end holds the lock for another moment. The error Is fs.ErrNotExist if the task
// was removed.
func lockTask(ctx context.Context, dir string) (*os.File, error) {
	for last := time.Now().Add(killTimeout); ; {
		held, err := lock.TryOpen(dir, lock.Exclusive)
		if !errors.Is(err, lock.ErrBusy) || time.Now().After(last) {
			return held, err
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// runSteps runs functions one after the other, up to the first error.
func runSteps(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
