package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Wait waits for a task's end and returns its exit code. A task that isn't kept leaves no record: its
// code is then the exit code of its launcher or monitor, which other processes can read since Linux
// 6.15. The error Is ErrCodeUnknown if the task has ended and its code is unknown.
func Wait(ctx context.Context, store tasks.Store, t tasks.Task) (int, error) {
	name, s := t.Name, supervisor{store: store}
	defer func() { s.Close() }()
	for {
		now, err := currentTask(ctx, store, t.ID)
		if errors.Is(err, ErrNotRunning) {
			return s.exitCode(name)
		}
		if err != nil {
			return supervise.CodeUnknown, err
		}
		switch t = now; {
		case t.Exit != nil && t.Exit.Unknown:
			return t.Exit.Code, fmt.Errorf("task %s: %w: %s", name, ErrCodeUnknown, t.Exit.Error)
		case t.Exit != nil:
			return t.Exit.Code, nil
		}
		if s.watch(t) {
			select {
			case <-s.end.Done:
			case <-ctx.Done():
				return supervise.CodeUnknown, context.Cause(ctx)
			case <-time.After(time.Second):
			}
			if err := checkSupervisor(store, t); err != nil {
				return supervise.CodeUnknown, err
			}
		} else if t.State == tasks.Lost {
			return supervise.CodeUnknown, fmt.Errorf("task %s: %w: %s", name, ErrCodeUnknown, t.Why)
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return supervise.CodeUnknown, err
		}
	}
}

// supervisor is a task's monitor or launcher. It exits with the task's exit code once everything was
// released.
type supervisor struct {
	store              tasks.Store
	*supervise.Process                   // nil before watch
	end                *supervise.Ending // of the process
}

// watch starts to wait for the end of the task's present supervisor. It returns false, and keeps the
// previous supervisor, if the present one has ended.
func (s *supervisor) watch(t tasks.Task) bool {
	p := t.Maker
	if t.Life != nil && t.Life.Monitor.PID > 0 {
		p = t.Life.Monitor
	}
	if s.Process != nil && s.Process.Process == p {
		return !s.end.HasEnded()
	}
	opened, err := openProcess(s.store, p)
	if err != nil {
		return false
	}
	s.Close()
	s.Process, s.end = opened, opened.Await()
	return true
}

// exitCode returns the exit code of the supervisor of a task that was removed.
func (s *supervisor) exitCode(name string) (int, error) {
	if s.end != nil {
		<-s.end.Done
		switch {
		case s.end.Err == nil && s.end.Status.Exited():
			return s.end.Status.ExitStatus(), nil
		case s.end.Err != nil && !errors.Is(s.end.Err, process.ErrUnknownExit):
			return supervise.CodeUnknown, s.end.Err
		}
	}
	return supervise.CodeUnknown, fmt.Errorf("task %s: %w: it has ended, and was removed", name, ErrCodeUnknown)
}
