// Package supervise owns the lifecycle of a container's process: how it is started in the
// foreground, what it reads and writes, which signals reach it, how it is asked to end and
// then killed, how its end becomes an exit code, and how long the pause before a restart is.
//
// There is one lifecycle with four users: the launcher in the foreground and commands that
// are executed in a container (Command), the monitor of a detached task or of each rank of a
// gang, and the engine on containerd. They differ in who makes the container and who learns
// of its end; Life does the rest.
//
// The package makes no container, leases no device and writes no record.
package supervise

import (
	"cmp"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// Terms say how a process is asked to end.
type Terms struct {
	// StopSignal asks it to end; 0 means SIGTERM.
	StopSignal syscall.Signal
	// Grace is the time from the stop signal to SIGKILL: 0 means DefaultGrace, and less
	// than zero means that the process is never killed.
	Grace time.Duration
	// Timeout is how long it may run; 0 means that there is no limit.
	Timeout time.Duration
	// Age is how long it has run already, see Process.Age.
	Age time.Duration
}

// TermsOf returns the terms of a task's record. age is Terms.Age.
func TermsOf(r tasks.Record, age time.Duration) Terms {
	return Terms{
		StopSignal: syscall.Signal(r.StopSignal), Grace: time.Duration(r.Grace),
		Timeout: time.Duration(r.Timeout), Age: age,
	}
}

// DefaultGrace is how long a task has between its stop signal and SIGKILL.
const DefaultGrace = 10 * time.Second

// Signal returns the stop signal.
func (t Terms) Signal() syscall.Signal { return cmp.Or(t.StopSignal, unix.SIGTERM) }

// GracePeriod returns the time from the stop signal to SIGKILL; less than zero is for ever.
func (t Terms) GracePeriod() time.Duration { return cmp.Or(t.Grace, DefaultGrace) }

// expired returns a channel that receives at the end of Timeout; nil without one.
func (t Terms) expired() <-chan time.Time {
	if t.Timeout <= 0 {
		return nil
	}
	return time.After(t.Timeout - t.Age)
}

// graceOver returns a channel that receives when a process that is asked to end now is to
// be killed; nil if it never is.
func (t Terms) graceOver() <-chan time.Time {
	if t.Grace < 0 {
		return nil
	}
	return time.After(t.GracePeriod())
}

// TimeoutReason returns the reason that is recorded for a task that was ended by its timeout.
func TimeoutReason(limit time.Duration) string { return fmt.Sprintf("its time of %v was over", limit) }

// Life is one life of a process.
type Life struct {
	Terms
	// Ended is closed when the process has ended.
	Ended <-chan struct{}
	// Send sends a signal to the process. It is false while there is no process yet: the
	// signal is then sent as soon as there is one, before all later ones.
	Send func(syscall.Signal) bool
	// Signals are passed on to the process. A stop signal is sent by Stop and never
	// filtered, whatever its number.
	Signals <-chan syscall.Signal
	// Stop asks the process to end, and says why. Each request sends the stop signal and
	// begins the grace anew.
	Stop <-chan string
	// Resized calls Resize each time it receives; both may be nil. The size of a terminal
	// is no signal here: SIGWINCH can be a task's stop signal.
	Resized <-chan struct{}
	Resize  func()
}

// retryAfter is how often Wait looks for a process that doesn't exist yet while signals are
// pending.
const retryAfter = 5 * time.Millisecond

// Wait supervises the process until it has ended. why is "" unless it was asked to end: by
// Stop, or because its time was over, which is TimeoutReason.
func (l Life) Wait() (why string) {
	var pending []syscall.Signal
	var retry, kill <-chan time.Time
	timeout := l.expired()
	for {
		select {
		case <-l.Ended:
			return why
		case sig := <-l.Signals:
			pending = append(pending, sig)
		case why = <-l.Stop:
			pending, kill = append(pending, l.Signal()), l.graceOver()
		case <-timeout:
			why = TimeoutReason(l.Timeout)
			pending, kill = append(pending, l.Signal()), l.graceOver()
		case <-kill:
			pending = append(pending, unix.SIGKILL)
		case <-l.Resized:
			l.Resize()
		case <-retry:
		}
		retry = nil
		for len(pending) > 0 && l.Send(pending[0]) {
			pending = pending[1:]
		}
		if len(pending) > 0 {
			retry = time.After(retryAfter)
		}
	}
}
