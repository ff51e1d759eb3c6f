package tasks

import "strconv"

// State is what a task is doing.
type State string

// States of a task.
const (
	Created    State = "created"    // its container is being made
	Waiting    State = "waiting"    // it is detached, and waits for devices
	Running    State = "running"    // a process of it lives
	Restarting State = "restarting" // between two lives
	Stopping   State = "stopping"   // it has ended, and its remains are being removed
	Exited     State = "exited"     // it has ended, and how is known
	Lost       State = "lost"       // it is gone, and how it ended isn't known
	Broken     State = "broken"     // what is known of it can't be read
)

// Status is a task's state, and what belongs to it.
type Status struct {
	State State `json:"state"`
	// Code is that of Exited.
	Code int `json:"code,omitempty"`
	// Why says more of Lost and Broken, and of Exited where there is more to say.
	Why string `json:"why,omitempty"`
}

func (s Status) String() string {
	if s.State == Exited {
		return "exited (" + strconv.Itoa(s.Code) + ")"
	}
	return string(s.State)
}

// Evidence is all that a status is derived from.
type Evidence struct {
	Record Record
	Life   *Life // nil without one
	Exit   *Exit // nil without one
	Boot   string
	// Init: the container's first process lives. Populated: some process of it does.
	Init, Populated bool
	// Held: its launcher or its monitor lives.
	Held bool
	// Stopped: somebody wants it to end.
	Stopped bool
}

// Derive says what a task is doing.
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
	case e.Life.Ended != nil && !e.Stopped && e.Record.Restart.Again(e.Life.Ended.Code, e.Life.Restarts):
		return Status{State: Restarting}
	}
	return Status{State: Stopping}
}
