package tasks

import "strconv"

// State is what a task is doing.
type State string

// States of a task.
const (
	Created    State = "created"    // its container is being created
	Waiting    State = "waiting"    // it is detached, and waits for devices
	Running    State = "running"    // at least one of its processes lives
	Restarting State = "restarting" // between two lives
	Stopping   State = "stopping"   // it has ended, and is being cleaned up
	Exited     State = "exited"     // its end is recorded
	Lost       State = "lost"       // it has ended without a record of its end
	Broken     State = "broken"     // its files can't be read
)

// Status is a task's state with details.
type Status struct {
	State State `json:"state"`
	// Code is the exit code in state Exited.
	Code int `json:"code,omitempty"`
	// Why is the reason of Lost and Broken, and for Exited the recorded error, if any.
	Why string `json:"why,omitempty"`
}

func (s Status) String() string {
	if s.State == Exited {
		return "exited (" + strconv.Itoa(s.Code) + ")"
	}
	return string(s.State)
}

// Evidence has the facts from which Derive derives a status.
type Evidence struct {
	Record Record
	Life   *Life // nil without one
	Exit   *Exit // nil without one
	Boot   string
	// Init means that the container's first process lives, Populated that any process of it does.
	Init, Populated bool
	// Held means that the launcher or the monitor lives.
	Held bool
	// Stopped means that MarkStopped was called.
	Stopped bool
}

// Derive returns the status of a task.
func Derive(e Evidence) Status {
	switch {
	case e.Exit != nil:
		return Status{State: Exited, Code: e.Exit.Code, Why: e.Exit.Error}
	case e.Record.BootID != e.Boot:
		return Status{State: Lost, Why: "the machine was restarted"}
	case e.Init || e.Populated:
		return Status{State: Running}
	case !e.Held && e.Life == nil:
		return Status{State: Lost, Why: "its launcher was killed"}
	case !e.Held:
		return Status{State: Lost, Why: "its monitor was killed, and its processes have ended"}
	case e.Life == nil && e.Record.Queued && e.Record.Lease == "":
		return Status{State: Waiting}
	case e.Life == nil:
		return Status{State: Created}
	case e.Life.Ended != nil && !e.Stopped && e.Record.Restart.Allows(e.Life.Ended.Code, e.Life.Restarts):
		return Status{State: Restarting}
	}
	return Status{State: Stopping}
}
