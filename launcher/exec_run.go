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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// execDir holds what a runtime needs for one command. Its lock says that somebody
// needs it still; the next command removes what was left behind.
type execDir struct {
	path string
	lock *os.File
}

func newExecDir(state string) (execDir, error) {
	all := filepath.Join(state, "exec")
	if err := os.MkdirAll(all, 0o700); err != nil {
		return execDir{}, fmt.Errorf("make directory for the command: %w", err)
	}
	gate, err := lock.Open(context.Background(), all, lock.Exclusive)
	if err != nil {
		return execDir{}, err
	}
	defer gate.Close() // nothing was written
	entries, err := os.ReadDir(all)
	if err != nil {
		return execDir{}, fmt.Errorf("make directory for the command: %w", err)
	}
	for _, e := range entries {
		old := filepath.Join(all, e.Name())
		held, busy := lock.TryOpen(old, lock.Exclusive)
		if busy != nil {
			continue
		}
		if err := errors.Join(os.RemoveAll(old), held.Close()); err != nil {
			return execDir{}, err
		}
	}
	d := execDir{path: filepath.Join(all, newID())}
	if err := os.Mkdir(d.path, 0o700); err != nil {
		return execDir{}, fmt.Errorf("make directory for the command: %w", err)
	}
	d.lock, err = lock.Open(context.Background(), d.path, lock.Exclusive)
	return d, err
}

func (d execDir) in(name string) string { return filepath.Join(d.path, name) }

func (d execDir) write(p *specs.Process) error {
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("describe the command: %w", err)
	}
	if err := os.WriteFile(d.in("process.json"), data, 0o600); err != nil {
		return fmt.Errorf("describe the command: %w", err)
	}
	return nil
}

func (d execDir) remove() error { return errors.Join(os.RemoveAll(d.path), d.lock.Close()) }

// execution is one command while it runs.
type execution struct {
	in   Inside
	task tasks.Task
	dir  execDir

	cmd   *exec.Cmd
	out   *output  // nil before
	pidfd *os.File // of the command, nil before it is known
	tty   *unix.Termios
	// null is the container's, in the place of the host's.
	null null
	// input is the command's, if it has one.
	input input
}

// options are those of a task that would be as the command is.
func (in Inside) options() Options {
	return Options{
		Terminal: in.Terminal, Interactive: !in.Detach && (in.Interactive || in.Terminal && isTerminal(in.Stdin)),
		Stdin: in.Stdin, Stdout: in.Stdout, Stderr: in.Stderr,
	}
}

func (e *execution) run(ctx context.Context, s *signals) (int, error) {
	o := e.in.options()
	args := []string{
		"--root", e.task.RuntimeRoot, "--log", e.dir.in("log"), "--log-format", "json",
		"exec", "--process", e.dir.in("process.json"), "--pid-file", e.dir.in("pid"),
	}
	if e.in.Detach && !e.in.Terminal {
		args = append(args, "--detach")
	}
	e.cmd = exec.Command(e.task.Runtime, append(args, e.task.ID)...)
	e.cmd.Env, e.cmd.Dir = []string{"PATH=" + programs}, "/"
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !o.Terminal || !o.Interactive} // as for a task, see task.exec
	var err error
	if e.out, err = e.output(o); err != nil {
		return 0, err
	}
	if err := e.start(ctx, o, s); err != nil {
		return 0, errors.Join(err, e.out.drain(s, true))
	}
	if e.in.Detach && e.in.Terminal {
		return e.leave(ctx, s)
	}
	err = e.wait(ctx, s)
	lost := e.out.drain(s, false) // what the command left behind may hold the ends open
	if lost = errors.Join(lost, e.input.lost()); lost != nil {
		return 0, lost
	}
	return e.result(err)
}

// output is what the command writes to: no runtime looks at what it gets for that.
func (e *execution) output(o Options) (*output, error) {
	out := &output{stdout: e.null.own, stderr: e.null.own}
	switch {
	case e.in.Detach && e.in.Terminal:
		return &output{}, nil // which is the runtime's alone
	case o.Terminal && !relays(e.task.Runtime):
		c, err := o.newConsole(e.dir.path)
		if err != nil {
			return nil, err
		}
		c.give(e.cmd)
		return &output{console: c}, nil
	case !e.in.Detach:
		var err error
		if out, err = o.newOutput(e.null); err != nil {
			return nil, err
		}
	case e.null.own == nil:
		return nil, errNoNull
	}
	e.cmd.Stdout, e.cmd.Stderr = out.stdout, out.stderr
	return out, nil
}

func (e *execution) start(ctx context.Context, o Options, s *signals) (err error) {
	defer e.out.started()
	switch {
	case e.out.console != nil: // which reads, too
	case o.Interactive || o.Terminal:
		e.input, err = o.input(e.null)
	default:
		e.input, err = e.null.input()
	}
	if err != nil {
		return err
	}
	if e.input.file != nil {
		defer e.input.file.Close() // the runtime has its own by then
		e.cmd.Stdin = e.input.file
	}
	switch {
	case e.out.console != nil:
	case e.in.Detach && e.in.Terminal:
		// The runtime holds the command's terminal as long as the command runs, and its own.
		e.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		e.cmd.ExtraFiles = []*os.File{e.input.nobody}
	case o.Terminal && o.Interactive:
		e.tty, _ = termios(o.Stdin) // nil if it can't be read, then not restored
	}
	if err := s.hold(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	program := ociruntime.Seal(e.task.Runtime)
	defer program.Close()
	cmd, err := program.Start(e.cmd, (*exec.Cmd).Start)
	if err != nil {
		return fmt.Errorf("start %s: %w", e.task.Runtime, err)
	}
	e.cmd = cmd
	return nil
}

// leave leaves a runtime alone as soon as its command was executed.
func (e *execution) leave(ctx context.Context, s *signals) (int, error) {
	defer e.close()
	ended := make(chan error, 1)
	go func() { ended <- e.cmd.Wait() }()
	done := ctx.Done()
	for {
		if _, err := os.Lstat(e.dir.in("pid")); err == nil {
			return 0, nil
		}
		select {
		case err := <-ended:
			if _, err = e.result(err); err != nil {
				return 0, err
			}
			return 0, nil
		case <-done:
			done = nil
			_ = e.cmd.Process.Kill() // it may have ended
		case sig := <-s.task:
			if asksToEnd(sig) {
				_ = e.cmd.Process.Kill() // it may have ended
			}
		case <-time.After(time.Millisecond):
		}
	}
}

// wait passes signals on until the runtime has ended. One that comes before the
// command is known is kept until it is.
func (e *execution) wait(ctx context.Context, s *signals) error {
	defer e.close()
	ended := make(chan error, 1)
	go func() { ended <- e.cmd.Wait() }()
	var pending []syscall.Signal
	var retry <-chan time.Time
	done := ctx.Done()
	for {
		select {
		case err := <-ended:
			return err
		case sig := <-s.task:
			pending = append(pending, sig)
		case <-done:
			done, pending = nil, append(pending, unix.SIGKILL)
		case <-retry:
		}
		for retry = nil; len(pending) > 0 && retry == nil; {
			if e.deliver(pending[0]) {
				pending = pending[1:]
			} else {
				retry = time.After(5 * time.Millisecond)
			}
		}
	}
}

// deliver says whether the signal is done with.
func (e *execution) deliver(sig syscall.Signal) bool {
	if sig == unix.SIGWINCH {
		if e.in.Terminal {
			_ = resize(e.in.options(), e.cmd, e.out) // one that can't be has the size it has
		}
		return true
	}
	if e.pidfd == nil && !e.find() {
		return false
	}
	_ = unix.PidfdSendSignal(int(e.pidfd.Fd()), sig, nil, 0) // it may have ended meanwhile
	return true
}

// find looks the command up, and makes sure that it is in the task's cgroup.
func (e *execution) find() bool {
	data, err := os.ReadFile(e.dir.in("pid"))
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	groups, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil || !bytes.Contains(groups, []byte(e.task.Cgroup+"/")) {
		_ = f.Close() // a pid that was reused
		return false
	}
	e.pidfd = f
	return true
}

func (e *execution) close() {
	for _, f := range []*os.File{e.pidfd, e.input.nobody} {
		if f != nil {
			_ = f.Close() // a handle; there is nothing to lose
		}
	}
	if e.tty != nil {
		// The terminal may be gone by now, and then there is nothing to restore.
		_ = unix.IoctlSetTermios(int(e.in.Stdin.Fd()), unix.TCSETS, e.tty)
	}
}

// result turns the runtime's end into the command's exit code. The runtime writes the
// pid file only when the command was executed.
func (e *execution) result(err error) (int, error) {
	var exit *exec.ExitError
	if err == nil {
		return 0, nil
	}
	if !errors.As(err, &exit) {
		return 0, fmt.Errorf("wait for %s: %w", e.task.Runtime, err)
	}
	status, _ := exit.Sys().(syscall.WaitStatus)
	switch _, missing := os.Lstat(e.dir.in("pid")); {
	case status.Signaled():
		return 0, fmt.Errorf("%s was ended by a signal: %w", e.task.Runtime, err)
	case missing == nil:
		return exit.ExitCode(), nil
	}
	return 0, runtimeError(filepath.Base(e.task.Runtime), e.dir.in("log"), exit)
}

// runtimeError makes one line of what a runtime says in its log.
func runtimeError(runtime, log string, exit error) error {
	msg := lastError(log)
	if msg == "" {
		return fmt.Errorf("%s: %w", runtime, exit)
	}
	err := fmt.Errorf("%s: %s", runtime, msg)
	switch {
	case !strings.Contains(msg, "exec"):
	case strings.Contains(msg, "not found"), strings.Contains(msg, "o such file or directory"):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case strings.Contains(msg, "ermission denied"), strings.Contains(msg, "xec format error"):
		return fmt.Errorf("%w: %w", ErrCantInvoke, err)
	}
	return err
}
