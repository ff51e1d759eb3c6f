package containerd

import (
	"context"
	"fmt"
	"syscall"

	client "github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// supervised is a containerd process that this process supervises: the first process of a container,
// or a command in one.
type supervised struct {
	client.Process
	ended <-chan client.ExitStatus
	io    *stdio
	// send is supervise.Process.SendAsInit or Send.
	send func(*supervise.Process, syscall.Signal) error
}

// superviseProcess supervises the process until it has ended, and returns its exit code. why is the
// result of supervise.Life.Wait. Signals are sent by a pidfd, because containerd's API identifies the
// process by its pid.
func (e *Engine) superviseProcess(ctx context.Context, p supervised, s *supervise.Signals, terms supervise.Terms) (code int, why string, err error) {
	target, _ := supervise.OpenProcess(e.procPath(), int(p.Pid())) // nil if it has ended
	defer target.Close()
	var status client.ExitStatus
	ended := make(chan struct{})
	go func() { defer close(ended); status = <-p.ended }()
	why = supervise.Life{
		Thaw:  e.thawer(p, target),
		Terms: terms, Ended: ended, Signals: s.C,
		Resized: s.Resized, Resize: func() { p.io.resizeTerminal(ctx, p) },
		Send: func(sig syscall.Signal) bool {
			if target != nil {
				_ = p.send(target, sig) // the process may have ended
			}
			return true
		},
	}.Wait()
	n, _, err := status.Result()
	if err != nil {
		return 0, why, fmt.Errorf("wait for its end: %w", simplifyError(err))
	}
	if sig := target.KilledFor(); sig != 0 && int(n) == supervise.CodeOfSignal(unix.SIGKILL) {
		return supervise.CodeOfSignal(sig), why, nil
	}
	return int(n), why, nil
}

// thawer returns supervise.Life.Thaw for the first process of a container. For a command in a container it
// returns nil: the task's other processes may be frozen for a purpose.
func (e *Engine) thawer(p supervised, target *supervise.Process) func() bool {
	task, ok := p.Process.(client.Task)
	if !ok {
		return nil
	}
	rec, err := e.store.Record(task.ID())
	if err != nil {
		return nil // removed meanwhile
	}
	tree, err := cgroup.Detect(rec.CgroupMount)
	if err != nil {
		return nil
	}
	return func() bool {
		if target.Killed() {
			tree.Thaw(rec.Cgroup)
		}
		return target.Killed()
	}
}
