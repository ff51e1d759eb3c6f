package supervise

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Process is the first process of a container, or a command that was executed in one. It holds a
// pidfd, so signals never reach a later process with the same pid. A Process isn't safe for
// concurrent use.
type Process struct {
	tasks.Process
	proc      string   // where procfs is mounted
	pidfd     *os.File // nil after Close
	killed    bool
	killedFor syscall.Signal
	// SendDenied sends a signal that this process may not send; nil if nothing can.
	SendDenied func(pidfd int, sig syscall.Signal) error
	askedAt    time.Time // when SendToCommand last sent a signal that asks to end, or SIGKILL; zero before
}

// OpenProcess opens the process with this pid. proc is where procfs is mounted; "" means /proc.
func OpenProcess(proc string, pid int) (*Process, error) {
	proc = cmp.Or(proc, "/proc")
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	start, err := process.Start(proc, pid)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Process{Process: tasks.Process{PID: pid, Start: start}, proc: proc, pidfd: f}, nil
}

// FindProcess opens the process whose pid a runtime has written to a file, if the process is below
// the cgroup. It returns nil if there is no such process: the runtime hasn't written the file yet, or
// the pid belongs to another process by now.
func FindProcess(pidFile, cgroup string) *Process {
	pid, err := smallfile.Int(pidFile)
	if err != nil || pid <= 0 {
		return nil
	}
	p, err := OpenProcess("", pid)
	if err != nil {
		return nil
	}
	groups, err := os.ReadFile(p.path("cgroup"))
	if err != nil || !bytes.Contains(groups, []byte(cgroup+"/")) {
		p.Close()
		return nil
	}
	return p
}

// Age returns how long ago the process started. It uses CLOCK_BOOTTIME, which can't be set, so that
// time limits don't depend on the date. It returns 0 on nil.
func (p *Process) Age() time.Duration {
	if p == nil {
		return 0
	}
	return process.Age(p.Start)
}

func (p *Process) path(name string) string {
	return filepath.Join(p.proc, strconv.Itoa(p.PID), name)
}

// Close closes the pidfd. It may be called twice, and on nil.
func (p *Process) Close() {
	if p != nil && p.pidfd != nil {
		_ = p.pidfd.Close() // only a handle
		p.pidfd = nil
	}
}

// HasEnded reports whether the process has ended.
func (p *Process) HasEnded() bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.pidfd.Fd()), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// Send sends a signal. A process that has ended is not an error.
func (p *Process) Send(sig syscall.Signal) error {
	p.killed = p.killed || sig == unix.SIGKILL
	err := unix.PidfdSendSignal(int(p.pidfd.Fd()), sig, nil, 0)
	if errors.Is(err, unix.EPERM) && p.SendDenied != nil {
		err = p.SendDenied(int(p.pidfd.Fd()), sig)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("send signal %d to process %d: %w", int(sig), p.PID, err)
	}
	return nil
}

// repeatLimit is the longest time between two signals of which the second counts as a repetition of the first. A
// command may have handled an older signal.
const repeatLimit = 10 * time.Second

// SendToCommand sends a signal to a command that was executed in a container. Any process of the task may
// have stopped the command, and a signal that asks to end waits for that: SIGCONT follows it. Any process
// may trace the command, and keep every signal but SIGKILL from it, or have moved it to a frozen cgroup: the second
// signal within repeatLimit that asks a traced or frozen command to end is SIGKILL. frozen then means that the caller must
// not wait for the command: on cgroup version 1 it ends once it is thawed, which is left to the task, because its other
// processes may be frozen for a purpose. cgroupMount is where cgroups are mounted; "" means /sys/fs/cgroup.
func (p *Process) SendToCommand(sig syscall.Signal, cgroupMount string) (frozen bool, err error) {
	again := p.asksAgain(sig)
	frozen = again && process.FrozenCgroup(p.proc, cgroupMount, p.PID) != ""
	if frozen || again && process.Traced(p.proc, p.PID) {
		sig = unix.SIGKILL
	}
	err = p.Send(sig)
	if AsksToEnd(sig) && process.Stopped(p.proc, p.PID) {
		err = errors.Join(err, p.Send(unix.SIGCONT))
	}
	return frozen, err
}

// asksAgain reports whether a signal asks the process to end at most repeatLimit after the previous one did.
func (p *Process) asksAgain(sig syscall.Signal) bool {
	if !isToEnd(sig) {
		return false
	}
	again := AsksToEnd(sig) && !p.askedAt.IsZero() && time.Since(p.askedAt) <= repeatLimit
	p.askedAt = time.Now()
	return again
}

// KillWithChildren kills the process, which must be an OCI runtime that starts a process in a container,
// with its children.
func (p *Process) KillWithChildren() {
	killWithChildren(p.proc, p.PID, func(sig syscall.Signal) error {
		return unix.PidfdSendSignal(int(p.pidfd.Fd()), sig, nil, 0)
	})
}

// killWithChildren kills a runtime with its children. A child that has joined the container may have been
// stopped by the task, and the runtime then waits for it. send sends the runtime a signal, and fails if the
// runtime has ended.
func killWithChildren(proc string, pid int, send func(syscall.Signal) error) {
	if send(unix.SIGSTOP) != nil {
		return
	}
	// A stopped runtime neither starts a process nor waits for one, so that the pids remain its children's.
	for range 100 { // milliseconds; it stops when it is next scheduled
		if process.Stopped(proc, pid) {
			break
		}
		if send(0) != nil {
			return // it has ended
		}
		time.Sleep(time.Millisecond)
	}
	for _, child := range process.Children(proc, pid) {
		_ = unix.Kill(child, unix.SIGKILL) // it may have ended
	}
	_ = send(unix.SIGKILL) // as before
}

// SendAsInit has the effect on a container's init that the signal has on an ordinary process. The
// kernel drops signals for which pid 1 of a PID namespace has no handler, so SendAsInit sends SIGKILL
// in place of a signal whose default action ends a process. ExitCode then returns the code of the
// original signal.
func (p *Process) SendAsInit(sig syscall.Signal) error {
	before := p.programID()
	if endsByDefault(sig) && p.lacksHandler(sig) {
		return p.killFor(sig)
	}
	if err := p.Send(sig); err != nil {
		return err
	}
	if sig == unix.SIGINT && p.hasMissed(sig, before) {
		return p.killFor(sig)
	}
	return nil
}

// Killed reports whether the process was sent SIGKILL. It returns false on nil.
func (p *Process) Killed() bool { return p != nil && p.killed }

func (p *Process) killFor(sig syscall.Signal) error {
	p.killedFor = sig
	return p.Send(unix.SIGKILL)
}

// KilledFor returns the signal in place of which SendAsInit sent SIGKILL, 0 if it did not.
func (p *Process) KilledFor() syscall.Signal {
	if p == nil {
		return 0
	}
	return p.killedFor
}

// Ending is the present or future end of a process. Status and Err may be read once Done is closed.
type Ending struct {
	Done chan struct{}
	// Status is how the process ended.
	Status unix.WaitStatus
	// Err is why Status is unknown, nil otherwise. It Is process.ErrUnknownExit if the kernel doesn't
	// report the status.
	Err error
}

// NewEnding returns the ending of a process that lives.
func NewEnding() *Ending { return &Ending{Done: make(chan struct{})} }

// Set records how the process ended. It is called once.
func (e *Ending) Set(status unix.WaitStatus, err error) {
	e.Status, e.Err = status, err
	close(e.Done)
}

// HasEnded reports whether the process has ended.
func (e *Ending) HasEnded() bool {
	select {
	case <-e.Done:
		return true
	default:
		return false
	}
}

// Await waits in the background for the end of a process that is not this process's child. Close
// doesn't end the wait.
func (p *Process) Await() *Ending {
	e := NewEnding()
	fd, err := unix.FcntlInt(p.pidfd.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		e.Set(0, fmt.Errorf("watch process %d: %w", p.PID, err))
		return e
	}
	go func() {
		status, err := process.Wait(p.proc, fd, p.PID)
		_ = unix.Close(fd) // only a handle
		e.Set(status, err)
	}()
	return e
}

// ExitCode returns the exit code of an ending, and the signal that ended the process, 0 if it
// exited. If SendAsInit has killed the process, it is the signal that SendAsInit was called with. The
// code of an unknown ending is CodeUnknown. It may be called on nil.
func (p *Process) ExitCode(e *Ending) (code int, sig syscall.Signal) {
	switch {
	case e.Err != nil:
		return CodeUnknown, 0
	case !e.Status.Signaled():
		return e.Status.ExitStatus(), 0
	case e.Status.Signal() == unix.SIGKILL && p.KilledFor() != 0:
		sig = p.KilledFor()
	default:
		sig = e.Status.Signal()
	}
	return CodeOfSignal(sig), sig
}

// endsByDefault reports whether the default action of a signal ends a process. It returns false for
// SIGKILL, which needs no replacement. Source: signal(7).
func endsByDefault(sig syscall.Signal) bool {
	switch sig {
	case unix.SIGKILL, unix.SIGCHLD, unix.SIGCONT, unix.SIGURG, unix.SIGWINCH, unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
		return false
	}
	return true
}

func (p *Process) lacksHandler(sig syscall.Signal) bool {
	return !process.HandlesSignal(p.proc, p.PID, int(sig))
}

// hasMissed reports whether a signal was lost because init executed another program between the
// sending of the signal and the call of its handler, as a shell does for its last command. The new
// program has no handler, so the kernel drops the signal for init. before is the result of programID
// from before the signal was sent.
//
// A handler that executes a program without a handler looks the same. Such handlers are common for
// SIGTERM (a program that ends another) and SIGHUP (a restart), so only SIGINT is checked.
func (p *Process) hasMissed(sig syscall.Signal, before string) bool {
	for range 200 { // milliseconds; a process that isn't scheduled for so long gets the next signal
		if !process.HasPending(p.proc, p.PID, int(sig)) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	now := p.programID()
	return now != "" && now != before && p.lacksHandler(sig)
}

func (p *Process) programID() string { return process.ProgramID(p.proc, p.PID) }
