package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/ociruntime"
)

// Command is a call of an OCI runtime that stays until the process that it starts in a
// container has ended: "run", which makes the container, or "exec". Its exit code is the
// process's.
//
// A Command is used once: Start, Wait and Drain, in this order.
type Command struct {
	Streams
	// Null is what the process gets in place of the host's /dev/null.
	Null Null
	// Runtime has to have a Log, which says why a call failed.
	Runtime ociruntime.Runtime
	// Args is the call without the container's ID.
	Args []string
	ID   string
	// Files are passed to the process from descriptor 3 on.
	Files []*os.File
	// PIDFile is the file that the runtime writes when the process runs its command: a
	// call that ends without it has failed.
	PIDFile string
	// Cgroup is above that of the process, which tells it from one of the same number.
	Cgroup string
	// Dir is a directory that only root can enter, for the socket of a terminal.
	Dir string
	// AsInit: the process is the first of a container, see Process.SendAsInit.
	AsInit bool
	// Detached: the process goes on without this one, with no input and no output.
	Detached bool

	cmd     *exec.Cmd
	out     *output
	in      input
	process *Process
	// before is the state of a terminal that the runtime makes raw, to be restored; nil
	// without one.
	before *unix.Termios
}

// Start starts the runtime by program and start, see ociruntime.Program.Start. Signals are
// the process's from then on. An error of ctx or of a signal that came before is returned
// as it is. Drain has to be called in any case.
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
	cmd, err := program.Start(cmd, start)
	if err != nil {
		return fmt.Errorf("start %s: %w", c.Runtime.Path, err)
	}
	c.cmd = cmd
	return nil
}

// connect gives the runtime what becomes the process's input and output.
func (c *Command) connect(cmd *exec.Cmd) (err error) {
	if c.Terminal && !c.Detached && !relaysTerminal(c.Runtime.Path) {
		if c.out.console, err = c.newConsole(c.Dir); err == nil {
			c.out.console.connect(cmd)
		}
		return err
	}
	// The runtime has to be in the foreground of our terminal to use it. Without that it is
	// in a process group of its own: ^C reaches the process once, through us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !c.ownTerminal()}
	if c.ownTerminal() {
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
		// The runtime holds the process's terminal as long as that runs, and its own.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.ExtraFiles = []*os.File{c.in.master}
	}
	return nil
}

func (c *Command) connectOutput(cmd *exec.Cmd) (err error) {
	switch {
	case c.Detached && c.Terminal:
		return nil // the terminal alone, which the runtime has
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
	// Why says why it was asked to end: TimeoutReason, or a cause of the context; "" if it
	// wasn't.
	Why string
}

// Wait supervises the process until it has ended. It is asked to end on the terms when ctx
// ends. The error says that the process was never started, or that its end isn't known; it
// Is rootfs.ErrNotFound or rootfs.ErrCantInvoke where the command is to blame.
func (c *Command) Wait(ctx context.Context, s *Signals, terms Terms) (Result, error) {
	var exit error
	ended := make(chan struct{})
	go func() { defer close(ended); exit = c.cmd.Wait() }()
	stop := make(chan string, 1)
	defer context.AfterFunc(ctx, func() { stop <- context.Cause(ctx).Error() })()
	why := Life{
		Terms: terms, Ended: ended, Send: c.send, Signals: s.C, Stop: stop,
		Resized: s.Resized, Resize: c.resize,
	}.Wait()
	defer c.process.Close()
	c.restoreTerminal()
	if sig := c.process.KilledFor(); sig != 0 {
		return Result{CodeOfSignal(sig), why}, nil
	}
	code, err := c.exitCode(exit)
	return Result{code, why}, err
}

// send sends a signal to the process. It returns false while the process doesn't exist yet.
func (c *Command) send(sig syscall.Signal) bool {
	if c.process == nil {
		if c.process = FindProcess(c.PIDFile, c.Cgroup); c.process == nil {
			return false
		}
	}
	if c.AsInit {
		_ = c.process.SendAsInit(sig) // it may have ended meanwhile
	} else {
		_ = c.process.Send(sig) // as before
	}
	return true
}

// resize gives the process's terminal the size of ours. One that can't be changed keeps its
// size.
func (c *Command) resize() {
	switch {
	case !c.Terminal:
	case c.out.console != nil:
		_ = c.out.console.resize()
	default:
		_ = c.resizeTerminalOf(c.cmd.Process.Pid)
	}
}

// restoreTerminal restores the terminal that a runtime that was killed had made raw.
func (c *Command) restoreTerminal() {
	if c.before != nil {
		_ = unix.IoctlSetTermios(int(c.Stdin.Fd()), unix.TCSETS, c.before) // it may be gone
	}
	c.in.closeMaster()
}

// exitCode turns the runtime's end into the process's exit code.
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
	case status.Signaled() && began && c.AsInit:
		// The runtime is in the task's cgroup: somebody ended all that is in there.
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
// starting it.
func (c *Command) WaitStarted(ctx context.Context, s *Signals) (int, error) {
	defer c.in.closeMaster()
	ended := make(chan error, 1)
	go func() { ended <- c.cmd.Wait() }()
	done := ctx.Done()
	for !c.hasStarted() {
		select {
		case err := <-ended:
			_, err = c.exitCode(err)
			return 0, err
		case <-done:
			done = nil
			_ = c.cmd.Process.Kill() // it may have ended
		case sig := <-s.C:
			if AsksToEnd(sig) {
				_ = c.cmd.Process.Kill() // as before
			}
		case <-time.After(time.Millisecond):
		}
	}
	return 0, nil
}

// Drain waits until all that the process has written has come out. allEnded says that no
// process is left that could write more. The error says what couldn't be written or read.
func (c *Command) Drain(s *Signals, allEnded bool) error {
	if c.out == nil {
		return nil
	}
	return errors.Join(c.out.drain(s, allEnded), c.in.copyError())
}
