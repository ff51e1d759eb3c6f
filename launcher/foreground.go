package launcher

import (
	"context"
	"os"
	"os/exec"

	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// startForeground starts the runtime, in the task's cgroup from its first instruction.
func (t *task) startForeground(ctx context.Context, s *supervise.Signals) error {
	t.command = supervise.Command{
		Streams: t.o.streams(), Null: supervise.Null{Replaced: true},
		Runtime: ociruntime.Runtime{Path: t.h.runtime, Root: t.paths.RuntimeRoot(t.h.runtime), Log: t.paths.RuntimeLog()},
		Args:    []string{"run", "--bundle", t.paths.Bundle(), "--pid-file", t.paths.PIDFile()},
		ID:      t.paths.ID, PIDFile: t.paths.PIDFile(), Cgroup: t.paths.Cgroup(), Dir: t.paths.Bundle(), AsInit: true,
		Thaw: func() { t.h.Cgroups.Thaw(t.paths.Cgroup()) },
	}
	if t.command.Adopt = t.command.CopiesOutput(); t.command.Adopt {
		t.command.Args = append(t.command.Args, "--detach")
	}
	if t.o.Channel != nil {
		t.command.Args = append(t.command.Args, "--preserve-fds", "1")
		t.command.Files = []*os.File{t.o.Channel}
	}
	var err error
	if t.oom, err = t.watchMemory(); err != nil {
		return err
	}
	defer t.program.Close()
	return t.command.Start(ctx, s, t.program, func(cmd *exec.Cmd) error { return t.h.Cgroups.StartRuntime(cmd, t.paths.Cgroup()) })
}

// streams returns the standard files of a task in the foreground.
func (o Options) streams() supervise.Streams {
	return supervise.Streams{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Terminal: o.Terminal, Interactive: o.Interactive}
}

// waitForeground supervises the task to its end, and returns its exit code.
func (t *task) waitForeground(ctx context.Context, s *supervise.Signals) (int, error) {
	terms := supervise.TermsOf(t.rec, 0)
	r, err := t.command.Wait(ctx, s, terms)
	t.timedOut = r.Why == supervise.TimeoutReason(terms.Timeout)
	return r.Code, err
}

// watchMemory starts to watch for OOM kills. It returns nil on cgroup v1 for a task without a
// memory limit, because a watch costs time there.
func (t *task) watchMemory() (*cgroup.OOMWatch, error) {
	if t.h.Cgroups.Version == cgroup.V1 && t.o.Memory == 0 {
		return nil, nil
	}
	return t.h.Cgroups.WatchOOM(t.paths.Cgroup(), "container")
}

// outOfMemoryError sets t.exit.OOM if the kernel has killed a process of the task for lack of
// memory. It returns an error if the task has also failed.
func (t *task) outOfMemoryError() error {
	if t.exit.Code == 0 && !t.o.Keep || !t.oom.Killed() {
		return nil
	}
	t.exit.OOM = true
	if t.exit.Code == 0 {
		return nil
	}
	return &supervise.OutOfMemory{Code: t.exit.Code, Limit: t.o.Memory}
}

// timedOutError sets t.exit.Error if the task's timeout has ended the task. It returns an error if
// the task has also failed.
func (t *task) timedOutError() error {
	if !t.timedOut {
		return nil
	}
	t.exit.Error = supervise.TimeoutReason(t.o.Timeout)
	if t.exit.Code == 0 {
		return nil
	}
	return &supervise.TimedOut{Code: t.exit.Code, After: t.o.Timeout}
}
