package launcher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// grace is how long a task usually has between the signal that asks it to end and SIGKILL.
const grace = 10 * time.Second

// patience ends when a task that was asked to end is made to.
func (t *task) patience() <-chan time.Time {
	if t.rec.Grace < 0 {
		return nil
	}
	return time.After(time.Duration(t.rec.Grace))
}

// wait passes signals on until the runtime has ended, and says how the task did.
func (t *task) wait(ctx context.Context, s *signals) (int, error) {
	ended := make(chan error, 1)
	go func() { ended <- t.cmd.Wait() }()
	i := &initProcess{place: t.place}
	defer i.close()
	err := t.relay(ctx, s, i, ended)
	t.restoreTerminal()
	if t.in.nobody != nil {
		_ = t.in.nobody.Close() // nobody sat there
	}
	if i.killedFor != 0 {
		return 128 + int(i.killedFor), nil
	}
	return t.result(err)
}

// relay returns how the runtime ended. A signal that comes before the container's
// init exists is kept until it does.
func (t *task) relay(ctx context.Context, s *signals, i *initProcess, ended <-chan error) error {
	var pending []syscall.Signal
	var retry, kill, timeout <-chan time.Time
	if t.o.Timeout > 0 {
		timeout = time.After(t.o.Timeout)
	}
	done := ctx.Done()
	for {
		select {
		case err := <-ended:
			return err
		case sig := <-s.task:
			pending = append(pending, sig)
		case <-done:
			done, kill = nil, t.patience()
			pending = append(pending, syscall.Signal(t.rec.StopSignal))
		case <-timeout:
			t.late, kill = true, t.patience()
			pending = append(pending, syscall.Signal(t.rec.StopSignal))
		case <-kill:
			pending = append(pending, unix.SIGKILL)
		case <-retry:
		}
		pending, retry = t.deliver(pending, i), nil
		if len(pending) > 0 {
			retry = time.After(5 * time.Millisecond)
		}
	}
}

// deliver returns the signals that couldn't be delivered yet.
func (t *task) deliver(pending []syscall.Signal, i *initProcess) []syscall.Signal {
	for n, sig := range pending {
		if sig == unix.SIGWINCH {
			t.resized()
			continue
		}
		if !i.find() {
			return pending[n:]
		}
		if err := i.signal(sig); err != nil && !errors.Is(err, unix.ESRCH) {
			t.o.Log.Warn("pass on signal", "signal", sig, "error", err)
		}
	}
	return nil
}

func (t *task) resized() {
	if !t.o.Terminal {
		return
	}
	if err := t.resize(); err != nil {
		t.o.Log.Warn("resize the container's terminal", "error", err)
	}
}

// initProcess is the container's first process, which has pid 1 inside.
type initProcess struct {
	place place
	pidfd *os.File
	pid   int
	// killedFor is the signal that init would have died of, were it not pid 1.
	killedFor syscall.Signal
}

// find looks init up in the pid file and makes sure that it's the task's.
func (i *initProcess) find() bool {
	if i.pidfd != nil {
		return true
	}
	data, err := os.ReadFile(i.place.pidFile())
	if err != nil {
		return false
	}
	var pid int
	if _, err := fmt.Sscan(string(data), &pid); err != nil {
		return false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || !bytes.Contains(groups, []byte(i.place.cgroup())) {
		f.Close() // a pid that was reused
		return false
	}
	i.pid, i.pidfd = pid, f
	return true
}

// signal does to init what the signal would do outside a container. The kernel
// drops signals that pid 1 has no handler for; ending it is what the sender meant.
func (i *initProcess) signal(sig syscall.Signal) error {
	before := i.program()
	if ends(sig) && i.unhandled(sig) {
		return i.kill(sig)
	}
	if err := i.send(sig); err != nil {
		return err
	}
	if sig == unix.SIGINT && i.missed(sig, before) {
		return i.kill(sig)
	}
	return nil
}

// missed says that init had a handler for a signal and has become another program before
// that could be called, as a shell does with its last command (exec): what is on its way
// then is dropped by the kernel, where it would end any other process. It can be mistaken
// in one whose handler becomes another program at once, which is how some end (SIGTERM)
// and others begin anew (SIGHUP): so only who is interrupted is asked about.
func (i *initProcess) missed(sig syscall.Signal, before string) bool {
	for range 200 { // milliseconds: one that isn't scheduled that long gets the next
		if !process.Pends("/proc", i.pid, int(sig)) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	now := i.program()
	return now != "" && now != before && i.unhandled(sig)
}

// kill ends init for a signal that it would have died of.
func (i *initProcess) kill(sig syscall.Signal) error {
	i.killedFor = sig
	return i.send(unix.SIGKILL)
}

func (i *initProcess) send(sig syscall.Signal) error {
	return unix.PidfdSendSignal(int(i.pidfd.Fd()), sig, nil, 0)
}

// program tells what init runs from what it ran before: no two programs have their code
// and stack in the same places. It is "" for one that has ended, or is about to: it has no
// program any more, and took note of whatever ended it. Source: proc_pid_stat(5), fields 26
// to 28.
func (i *initProcess) program() string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", i.pid))
	if err != nil {
		return ""
	}
	const first = 3 // the field behind the name, which may have anything in it
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 28-first+1 {
		return ""
	}
	if fields[26-first] == "0" { // its memory is gone
		return ""
	}
	return strings.Join(fields[26-first:28-first+1], " ")
}

func (i *initProcess) unhandled(sig syscall.Signal) bool {
	return !process.Heeds("/proc", i.pid, int(sig))
}

func (i *initProcess) close() {
	if i.pidfd != nil {
		i.pidfd.Close() // a handle; there is nothing to lose
	}
}

// watchMemory is nil where it isn't watched: on v1, where that costs something, only a
// limit of the task's own is.
func (t *task) watchMemory() (*cgroup.OOMWatch, error) {
	if t.h.tree.Version == cgroup.V1 && t.o.Memory == 0 {
		return nil, nil
	}
	return t.h.tree.WatchOOM(t.place.cgroup(), "container")
}

// starved notes whether a task that has ended ran out of memory, and is an error if it has
// ended badly.
func (t *task) starved() error {
	if t.ended.Code == 0 && !t.o.Keep || !t.oom.Killed() {
		return nil
	}
	t.ended.OOM = true
	if t.ended.Code == 0 {
		return nil
	}
	return &OutOfMemory{Code: t.ended.Code, Limit: t.o.Memory}
}

// overran notes that a task was ended because its time was over, and is an error if it has
// ended badly.
func (t *task) overran() error {
	if !t.late {
		return nil
	}
	t.ended.Error = overtime(t.o.Timeout)
	if t.ended.Code == 0 {
		return nil
	}
	return &TimedOut{Code: t.ended.Code, After: t.o.Timeout}
}

// result turns the runtime's end into the task's exit code. The runtime writes
// the pid file only when the command was executed. A runtime that was killed
// after that went with its task: somebody ended their cgroup.
func (t *task) result(err error) (int, error) {
	var exit *exec.ExitError
	if err == nil {
		return 0, nil
	}
	if !errors.As(err, &exit) {
		return 0, fmt.Errorf("wait for %s: %w", t.h.runtime, err)
	}
	_, missing := os.Lstat(t.place.pidFile())
	status, _ := exit.Sys().(syscall.WaitStatus)
	switch {
	case status.Signaled() && missing == nil:
		return 128 + int(status.Signal()), nil
	case status.Signaled():
		return 0, fmt.Errorf("%s was ended by a signal: %w", t.h.runtime, err)
	case missing == nil:
		return exit.ExitCode(), nil
	}
	return 0, t.startError(exit)
}

// startError makes one line of what the runtime says.
func (t *task) startError(exit *exec.ExitError) error {
	name := filepath.Base(t.h.runtime)
	msg := lastError(t.place.log())
	if msg == "" {
		return fmt.Errorf("%s: %w", name, exit)
	}
	err := fmt.Errorf("%s: %s", name, msg)
	switch {
	case !strings.Contains(msg, "exec"):
	case strings.Contains(msg, "not found"), strings.Contains(msg, "o such file or directory"):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case strings.Contains(msg, "ermission denied"), strings.Contains(msg, "xec format error"):
		return fmt.Errorf("%w: %w", ErrCantInvoke, err)
	}
	return err
}

// lastError reads the runtime's log: JSON objects, one in a line.
func lastError(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	last := ""
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && entry.Level == "error" {
			last = entry.Msg
		}
	}
	return oneLine(last)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
