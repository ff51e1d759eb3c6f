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

// supervised is a containerd process that this process starts and supervises: the first process of a
// container, or a command in one.
type supervised struct {
	client.Process
	io *stdio
	// detached means that the process is only started.
	detached bool
	// send calls supervise.Process.SendAsInit or SendToCommand. It returns true if the process, which is frozen, must not be
	// waited for.
	send func(*supervise.Process, syscall.Signal) bool
	// startError explains why the process wasn't started.
	startError func(error) error
	// killRuntime kills the runtime that starts the process; nil if undoing the launch does.
	killRuntime func()
}

// startAbandoned is the result why of superviseProcess if a signal has ended the start.
const startAbandoned = "a signal has ended its start"

// superviseProcess starts the process, supervises it until it has ended, and returns its exit code. why is the
// result of supervise.Life.Wait, or startAbandoned. A signal that is to end the process while it is being started ends the
// start, as supervise.Life has it. Signals are sent by a pidfd, because containerd's API identifies the process by its
// pid.
func (e *Engine) superviseProcess(ctx context.Context, p supervised, s *supervise.Signals, terms supervise.Terms) (code int, why string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	exited, err := p.Wait(ctx)
	if err != nil {
		return 0, "", simplifyError(err)
	}
	var target *supervise.Process // nil if it has ended
	var status client.ExitStatus
	var failed error
	started, ended := make(chan struct{}), make(chan struct{})
	broken := make(chan string, 1)
	p.io.relay.Broken = broken
	go func() {
		defer close(ended)
		if failed = p.Start(ctx); failed != nil || p.detached {
			return
		}
		target, _ = supervise.OpenProcess(e.procPath(), int(p.Pid()))
		p.io.attach(ctx, p)
		close(started)
		status = <-exited
	}()
	var abandonedFor syscall.Signal
	abandon := func(sig syscall.Signal) {
		abandonedFor = sig
		if p.killRuntime != nil {
			p.killRuntime()
		}
		cancel()
	}
	asked := false
	why = supervise.Life{
		Thaw: e.newThawFunc(p), Killed: func() bool {
			select {
			case <-started:
				return target.Killed()
			default:
				return false
			}
		},
		Terms: terms, Ended: ended, Signals: s.C, Stop: broken,
		Resized: s.Resized, Resize: func() { p.io.resizeTerminal(ctx, p) },
		Send: func(sig syscall.Signal) bool {
			select {
			case <-started:
			default:
				return false
			}
			asked = asked || supervise.AsksToEnd(sig) || sig == unix.SIGKILL
			if target != nil && p.send(target, sig) {
				abandon(sig)
			}
			return true
		},
		Abandon: abandon,
	}.Wait()
	defer target.Close()
	switch {
	case abandonedFor != 0:
		return supervise.CodeOfSignal(abandonedFor), startAbandoned, nil
	case failed != nil:
		return 0, why, p.startError(failed)
	case p.detached:
		return 0, why, nil
	}
	p.io.finishOutput(s, asked)
	n, _, err := status.Result()
	if err != nil {
		return 0, why, fmt.Errorf("wait for its end: %w", simplifyError(err))
	}
	if sig := target.KilledFor(); sig != 0 && int(n) == supervise.CodeOfSignal(unix.SIGKILL) {
		return supervise.CodeOfSignal(sig), why, nil
	}
	return int(n), why, nil
}

// newThawFunc returns supervise.Life.Thaw for the first process of a container. For a command in a container it
// returns nil: the task's other processes may be frozen for a purpose.
func (e *Engine) newThawFunc(p supervised) func() {
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
	return func() { tree.Thaw(rec.Cgroup) }
}
