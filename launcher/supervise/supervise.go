// Package supervise owns the lifecycle of a container's process: start in the foreground, standard
// files, signals, stop signal and SIGKILL, exit code, and the pause before a restart.
//
// The lifecycle has four users: the launcher in the foreground and commands that are executed in a
// container (Command), the monitor of a detached task or of each rank of a gang, and the containerd
// engine. They differ in how the container is created and how its end is noticed; Life does the rest.
//
// The package creates no container, leases no device and writes no record.
package supervise

import (
	"cmp"
	"fmt"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// Terms say when and how a process is stopped.
type Terms struct {
	// StopSignal asks the process to end; 0 means SIGTERM.
	StopSignal syscall.Signal
	// Grace is the time from the stop signal to SIGKILL: 0 means DefaultGrace, and less
	// than zero means that the process is never killed.
	Grace time.Duration
	// Timeout is how long the process may run; 0 means no limit.
	Timeout time.Duration
	// Age is how long the process has already run, see Process.Age.
	Age time.Duration
}

// TermsOf returns the terms of a task's record. age is Terms.Age.
func TermsOf(r tasks.Record, age time.Duration) Terms {
	return Terms{
		StopSignal: syscall.Signal(r.StopSignal), Grace: time.Duration(r.Grace),
		Timeout: time.Duration(r.Timeout), Age: age,
	}
}

// DefaultGrace is the default time between a task's stop signal and SIGKILL.
const DefaultGrace = 10 * time.Second

// Signal returns the stop signal.
func (t Terms) Signal() syscall.Signal { return cmp.Or(t.StopSignal, unix.SIGTERM) }

// GracePeriod returns the time from the stop signal to SIGKILL; less than zero means no SIGKILL.
func (t Terms) GracePeriod() time.Duration { return cmp.Or(t.Grace, DefaultGrace) }

// timeoutTimer returns a channel that receives at the end of Timeout; nil without a timeout.
func (t Terms) timeoutTimer() <-chan time.Time {
	if t.Timeout <= 0 {
		return nil
	}
	return time.After(t.Timeout - t.Age)
}

// graceTimer returns a channel that receives at the end of the grace period, which begins now; nil if
// the process is never killed.
func (t Terms) graceTimer() <-chan time.Time {
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
	// Send sends a signal to the process. It returns false if the process doesn't exist yet or has
	// ended: the signal is then sent as soon as it exists, in the order of the signals.
	Send func(syscall.Signal) bool
	// Abandon ends what starts the process or waits for it, so that Ended is closed. It is called when
	// a signal that is to end the process hasn't found it for absentGrace. nil if Send always returns
	// true.
	Abandon func(syscall.Signal)
	// Thaw thaws the process's cgroups (cgroup.Hierarchy.Thaw): on cgroup version 1 a frozen process doesn't
	// end. Once Killed returns true, Thaw is called every ThawInterval, because the task can freeze itself
	// again. Killed reports whether the process was sent SIGKILL. It isn't called if Thaw is nil.
	Thaw   func()
	Killed func() bool
	// Signals are forwarded to the process.
	Signals <-chan syscall.Signal
	// Stop receives requests to stop the process, with the reason. Each request sends the stop signal
	// and restarts the grace period.
	Stop <-chan string
	// Resize is called for each value of Resized; both may be nil. Changes of a terminal's size don't
	// come as signals, because SIGWINCH can be a task's stop signal.
	Resized <-chan struct{}
	Resize  func()
}

// retryInterval is how often Wait tries to send pending signals to a process that doesn't exist yet.
const retryInterval = 5 * time.Millisecond

// absentGrace is how long a signal that is to end the process waits for it. Starts and ends of containers
// take less.
const absentGrace = time.Second

// ThawInterval is how often the cgroups of a killed process are thawed.
const ThawInterval = 50 * time.Millisecond

// Wait supervises the process until it has ended. why is the reason for stopping the process: a value
// of Stop, TimeoutReason, or "" if the process wasn't stopped.
func (l Life) Wait() (why string) {
	var pending []syscall.Signal
	var retry, kill, abandon, thaw <-chan time.Time
	timeout := l.timeoutTimer()
	for {
		select {
		case <-l.Ended:
			return why
		case sig := <-l.Signals:
			pending = append(pending, sig)
		case why = <-l.Stop:
			pending, kill = append(pending, l.Signal()), l.graceTimer()
		case <-timeout:
			why = TimeoutReason(l.Timeout)
			pending, kill = append(pending, l.Signal()), l.graceTimer()
		case <-kill:
			pending = append(pending, unix.SIGKILL)
		case <-l.Resized:
			l.Resize()
		case <-retry:
		case <-thaw:
		case <-abandon:
			abandon = nil
			l.Abandon(pending[slices.IndexFunc(pending, isToEnd)])
		}
		retry = nil
		for len(pending) > 0 && l.Send(pending[0]) {
			pending = pending[1:]
		}
		if len(pending) > 0 {
			retry = time.After(retryInterval)
		}
		if l.Thaw != nil && l.Killed() {
			l.Thaw()
			thaw = time.After(ThawInterval)
		}
		switch absent := slices.ContainsFunc(pending, isToEnd); {
		case !absent:
			abandon = nil
		case abandon == nil:
			abandon = time.After(absentGrace)
		}
	}
}

func isToEnd(sig syscall.Signal) bool { return AsksToEnd(sig) || sig == unix.SIGKILL }
