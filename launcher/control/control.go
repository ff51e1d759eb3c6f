// Package control acts on tasks that exist, whoever has launched them: it signals, stops and
// awaits them, removes them, runs commands in them, gives those without a monitor a new one,
// and removes what launchers left that were killed.
//
// Any number of processes may do so at once, beside the launcher or the monitor of a task.
// Processes are named by pid and start time and signalled by a pidfd, so that a number that
// was reused is never signalled. What is removed is locked first: the lock of a task's
// directory is held by its launcher or monitor as long as that lives.
//
// It launches no task; package launcher does, and begins with Sweep.
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
	// ErrRuns says that something can only be done to a task that has ended.
	ErrRuns = errors.New("it still runs")
	// ErrNotRunning says that the task has no container to do something in.
	ErrNotRunning = errors.New("it isn't running")
	// ErrCodeUnknown says that the task has ended, and that nobody kept its exit code.
	ErrCodeUnknown = errors.New("its exit code isn't known")
	// ErrHalted says that a task's monitor or launcher was stopped by a signal or frozen.
	ErrHalted = errors.New("is stopped or frozen")
	// ErrRank says that something can only be done to a whole gang.
	ErrRank = errors.New("it is a rank of a gang")
)

// killTimeout is how long what was killed may take to be gone: the kernel frees its memory,
// and the monitor gives everything back.
const killTimeout = 30 * time.Second

// currentTask reads a task as it is now. If its monitor was killed the task gets another one
// first, where that is possible, because nobody else learns how it ends. A task that was cut
// off before it had started is removed. The error Is ErrNotRunning if there is no such task.
func currentTask(ctx context.Context, store tasks.Store, id string) (tasks.Task, error) {
	t, err := store.Task(id)
	// The new monitor can be killed, too.
	for err == nil && (t.Orphan() && startNewMonitor(ctx, store, "", id) == nil || t.Abandoned() && removeAbandoned(ctx, store, id) == nil) {
		t, err = store.Task(id)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return t, fmt.Errorf("task %s: %w any more", id, ErrNotRunning)
	}
	return t, err
}

// checkSupervisor fails if all processes of a task have ended and the one that is to give
// everything back, its monitor or its launcher, was stopped or frozen. The error Is ErrHalted.
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

// hasEnded says that nothing of a task is left that could be ended.
func hasEnded(t tasks.Task) bool { return t.State == tasks.Exited || t.State == tasks.Lost }

// markStopped notes that a task isn't started again. A rank isn't either, nor its gang.
func markStopped(store tasks.Store, t tasks.Task) error {
	if t.Member != nil {
		if err := store.MarkStopped(t.Member.Gang); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return store.MarkStopped(t.ID)
}

// openProcess opens just this process. The error Is ErrNotRunning if it has ended.
func openProcess(store tasks.Store, p tasks.Process) (*supervise.Process, error) {
	opened, err := supervise.OpenProcess(store.Proc, p.PID)
	if store.Lives(p) {
		return opened, err
	}
	opened.Close()
	return nil, fmt.Errorf("%w any more", ErrNotRunning)
}

// sendSignal sends a signal to just this process. The error Is ErrNotRunning if it has ended.
func sendSignal(store tasks.Store, p tasks.Process, sig syscall.Signal) error {
	opened, err := openProcess(store, p)
	if err != nil {
		return err
	}
	defer opened.Close()
	return opened.Send(sig)
}

// lockTask locks the directory of a task whose end was just recorded: the process that
// recorded it holds the lock for another moment. The error Is fs.ErrNotExist if the task was
// removed.
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
