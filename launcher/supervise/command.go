package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/launcher/ociruntime"
)

// Command is a call of an OCI runtime that lasts as long as the process that it starts in a
// container: "run", which creates the container, or "exec". The runtime's exit code is the
// process's.
//
// A Command is used once: Start, Wait and Drain, in this order.
type Command struct {
	Streams
	// Null replaces the host's /dev/null in the process.
	Null Null
	// Runtime must have a Log, from which errors are read.
	Runtime ociruntime.Runtime
	// Args are the runtime's arguments without the container's ID.
	Args []string
	ID   string
	// Files are passed to the process from descriptor 3 on.
	Files []*os.File
	// PIDFile is the file that the runtime writes when the process runs its command. A call that
	// ends without the file has failed.
	PIDFile string
	// Cgroup is a cgroup above the process's own. It distinguishes the process from a later one with
	// the same pid.
	Cgroup string
	// CgroupMount is where cgroups are mounted; "" means /sys/fs/cgroup.
	CgroupMount string
	// Dir is a directory that only root can enter, for the socket of a terminal.
	Dir string
	// AsInit means that the process is the first of a container, see Process.SendAsInit.
	AsInit bool
	// Thaw thaws the task's cgroups (cgroup.Hierarchy.Thaw), so that the process ends that was killed. It may
	// be nil.
	Thaw func()
	// Detached means that the process outlives this one and has neither input nor output.
	Detached bool
	// Adopt means that Args make the runtime end once the process runs, and that Wait waits for the
	// process itself. This process becomes the process's parent.
	Adopt bool

	cmd          *exec.Cmd
	out          *output
	in           input
	process      *Process
	adopted      bool           // the runtime has ended, and the process is this one's child
	asked        bool           // the process was sent a signal that asks it to end, or ends it
	abandonedFor syscall.Signal // the signal for which abandon has ended the runtime, 0 without
	leave        func()         // makes Wait return although the process has not ended
	// before is the state of a terminal that the runtime makes raw, to be restored; nil
	// without one.
	before *unix.Termios
}

// CopiesOutput reports whether the runtime copies the process's output, as runc does unless it is called with
// --detach. Such a runtime ends only when no process has the output open any more, and when all of it was
// read. With --detach and Adopt, the process writes to this process's pipes directly.
func (c *Command) CopiesOutput() bool {
	return !c.Detached && !c.Terminal && c.Runtime.Name() != "crun"
}

// Start starts the runtime by program and start, see ociruntime.Program.Start. From then on signals
// are forwarded to the process. If ctx has ended or a signal came before, Start returns that error
// unchanged. Drain must be called even after an error.
func (c *Command) Start(ctx context.Context, s *Signals, program ociruntime.Program, start func(*exec.Cmd) error) error {
	cmd := c.Runtime.Command(append(c.Args[:len(c.Args):len(c.Args)], c.ID)...)
	cmd.ExtraFiles = c.Files
	c.out = &output{}
	if err := c.connect(cmd); err != nil {
		return err
	}
	defer c.out.closeProcessEnds()
	defer c.in.closeProcessEnd()
	if err := s.Hold(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.Adopt {
		if err := beginAdoption(); err != nil {
			return err
		}
	}
	cmd, err := program.Start(cmd, start)
	if err != nil {
		if c.Adopt {
			endAdoption()
		}
		return fmt.Errorf("start %s: %w", c.Runtime.Path, err)
	}
	c.cmd = cmd
	return nil
}

// connect sets the runtime's standard files, which become the process's.
func (c *Command) connect(cmd *exec.Cmd) (err error) {
	if c.Terminal && !c.Detached && !relaysTerminal(c.Runtime.Path) {
		if c.out.console, err = c.newConsole(c.Dir); err == nil {
			c.out.console.connect(cmd)
		}
		return err
	}
	// A runtime that uses this process's terminal has to be in its foreground process group. Any other
	// runtime gets its own process group: ^C reaches the process once, forwarded by this one.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !c.usesOwnTerminal()}
	if c.usesOwnTerminal() {
		c.before, _ = terminalState(c.Stdin) // nil if it can't be read
	}
	if err := c.connectOutput(cmd); err != nil {
		return err
	}
	if err := c.connectInput(cmd); err != nil {
		c.out.closeProcessEnds()
		return err
	}
	if c.Detached && c.Terminal {
		// The runtime lives as long as the process, so it gets its own session and keeps in.master open.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.ExtraFiles = []*os.File{c.in.master}
	}
	return nil
}

func (c *Command) connectOutput(cmd *exec.Cmd) (err error) {
	switch {
	case c.Detached && c.Terminal:
		return nil // the process has only the terminal, which the runtime holds
	case c.Detached && c.Null.own == nil:
		return ErrNoNull
	case c.Detached:
		c.out = &output{stdout: c.Null.own, stderr: c.Null.own}
	default:
		if c.out, err = c.openOutput(c.Null); err != nil {
			c.out = &output{}
			return err
		}
	}
	cmd.Stdout, cmd.Stderr = c.out.stdout, c.out.stderr
	return nil
}

func (c *Command) connectInput(cmd *exec.Cmd) (err error) {
	switch {
	case c.Interactive || c.Terminal:
		c.in, err = c.openInput(c.Null)
	case c.Null.Replaced:
		return nil // exec.Cmd opens the host's
	default:
		c.in, err = c.Null.emptyInput()
	}
	if err == nil {
		cmd.Stdin = c.in.file
	}
	return err
}

// Result is how a process ended.
type Result struct {
	Code int
	// Why is the reason for stopping the process: TimeoutReason, or the cause of the context; "" if
	// the process wasn't stopped.
	Why string
}

// Wait supervises the process until it has ended. A frozen process that isn't a container's first is killed by the
// second signal that asks it to end, and not waited for (Process.SendToCommand). When ctx ends, the process is stopped on the terms.
// An error means that the process was never started, or that its exit code is unknown. It Is
// rootfs.ErrNotFound or rootfs.ErrCantInvoke if the command can't be run.
func (c *Command) Wait(ctx context.Context, s *Signals, terms Terms) (Result, error) {
	var exit error // isn't read if the process was left
	ended := make(chan struct{})
	c.leave = sync.OnceFunc(func() { close(ended) })
	go func() {
		exit = c.waitEnded()
		c.leave()
	}()
	stop := make(chan string, 1)
	defer context.AfterFunc(ctx, func() { stop <- context.Cause(ctx).Error() })()
	why := Life{
		Terms: terms, Ended: ended, Send: c.send, Abandon: c.abandon, Thaw: c.Thaw, Killed: c.killed, Signals: s.C, Stop: stop,
		Resized: s.Resized, Resize: c.resize,
	}.Wait()
	defer c.process.Close()
	c.restoreTerminal()
	if sig := cmp.Or(c.process.KilledFor(), c.abandonedFor); sig != 0 {
		return Result{CodeOfSignal(sig), why}, nil
	}
	code, err := c.exitCode(exit)
	return Result{code, why}, err
}

// waitEnded waits until the runtime and the process have ended, and returns the error of the runtime or
// the process.
func (c *Command) waitEnded() error {
	err := c.cmd.Wait()
	if c.Adopt {
		endAdoption() // the process is this one's child by now
	}
	if err != nil || !c.Adopt {
		return err
	}
	pid, err := smallfile.Int(c.PIDFile)
	if err != nil {
		return err
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	state, err := p.Wait()
	if err != nil {
		return err
	}
	c.adopted = true
	if !state.Success() {
		return &exec.ExitError{ProcessState: state}
	}
	return nil
}

// send sends a signal to the process. It returns false while the process doesn't exist yet, and when it
// has ended.
func (c *Command) send(sig syscall.Signal) bool {
	if c.process == nil {
		if c.process = FindProcess(c.PIDFile, c.Cgroup); c.process == nil {
			return false
		}
	}
	if c.process.HasEnded() {
		return false
	}
	c.asked = c.asked || isToEnd(sig)
	if c.AsInit {
		_ = c.process.SendAsInit(sig) // it may have ended meanwhile
	} else if frozen, _ := c.process.SendToCommand(sig, c.CgroupMount); frozen { // as before
		c.abandon(sig)
		c.leave()
	}
	return true
}

// killed implements Life.Killed. On cgroup version 1 a process that ends by itself is in no cgroup any more, so that send
// doesn't find it, and if it is the first of a container it waits for the container's frozen processes.
func (c *Command) killed() bool { return c.process.Killed() || c.abandonedFor != 0 }

// abandon ends the runtime because of a signal that has found no process, or a frozen one.
func (c *Command) abandon(sig syscall.Signal) {
	c.abandonedFor = sig
	c.killRuntime()
}

// killRuntime kills the runtime with its children.
func (c *Command) killRuntime() {
	killWithChildren("/proc", c.cmd.Process.Pid, func(sig syscall.Signal) error { return c.cmd.Process.Signal(sig) })
}

// resize sets the size of the process's terminal to that of this process's. Errors are ignored.
func (c *Command) resize() {
	switch {
	case !c.Terminal:
	case c.out.console != nil:
		_ = c.out.console.resize()
	default:
		_ = c.resizeTerminalOf(c.cmd.Process.Pid)
	}
}

// restoreTerminal restores this process's terminal: a runtime that was killed leaves it in raw mode.
func (c *Command) restoreTerminal() {
	if c.before != nil {
		_ = unix.IoctlSetTermios(int(c.Stdin.Fd()), unix.TCSETS, c.before) // it may be gone
	}
	c.in.closeMaster()
}

// exitCode returns the process's exit code, given the runtime's.
func (c *Command) exitCode(err error) (int, error) {
	var exit *exec.ExitError
	if err == nil {
		return 0, nil
	}
	if !errors.As(err, &exit) {
		return 0, fmt.Errorf("wait for %s: %w", c.Runtime.Path, err)
	}
	status, _ := exit.Sys().(syscall.WaitStatus)
	switch began := c.hasStarted(); {
	case status.Signaled() && (c.adopted || began && c.AsInit):
		// A runtime in the task's cgroup is killed with the task's processes.
		return CodeOfSignal(status.Signal()), nil
	case status.Signaled():
		return 0, fmt.Errorf("%s was ended by a signal: %w", c.Runtime.Path, err)
	case began:
		return exit.ExitCode(), nil
	}
	return 0, c.Runtime.Failed(exit)
}

// hasStarted reports whether the process runs its command or has run it.
func (c *Command) hasStarted() bool {
	_, err := os.Lstat(c.PIDFile)
	return err == nil
}

// WaitStarted returns as soon as the process of a Detached command with a terminal runs, whose
// runtime stays. A signal that asks to end, or the end of ctx, ends a runtime that is still
// starting it, and is what WaitStarted then returns.
func (c *Command) WaitStarted(ctx context.Context, s *Signals) (int, error) {
	defer c.in.closeMaster()
	ended := make(chan error, 1)
	go func() { ended <- c.cmd.Wait() }()
	done := ctx.Done()
	for !c.hasStarted() {
		select {
		case err := <-ended:
			switch {
			case c.abandonedFor != 0:
				return CodeOfSignal(c.abandonedFor), nil
			case ctx.Err() != nil:
				return 0, context.Cause(ctx)
			}
			_, err = c.exitCode(err)
			return 0, err
		case <-done:
			done = nil
			c.killRuntime()
		case sig := <-s.C:
			if AsksToEnd(sig) {
				c.abandon(sig)
			}
		case <-time.After(time.Millisecond):
		}
	}
	if c.abandonedFor != 0 {
		return CodeOfSignal(c.abandonedFor), nil
	}
	return 0, context.Cause(ctx)
}

// Drain waits until all output of the process was copied. allEnded means that no process is left that
// could write more. The error tells what couldn't be read or written.
func (c *Command) Drain(s *Signals, allEnded bool) error {
	if c.out == nil {
		return nil
	}
	return errors.Join(c.out.drain(s, allEnded, c.asked), c.in.copyError())
}
