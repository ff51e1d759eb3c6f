package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// verdict is the result of checking the holder of one lease.
type verdict struct {
	live bool
	// making is set if the process that took the lease lives and may still be creating the
	// container.
	making bool
	// why is the reason why the holder is dead, or a note about a live one.
	why string
	// bound is the lease to record if the container of a reserved lease was found; nil otherwise.
	bound *Lease
}

// judge decides whether the holder of a lease lives. In doubt the holder counts as alive: a lease
// that is kept too long only delays others, but a lease that is freed too early gives one GPU to two
// tasks.
func judge(w system, me self, l Lease) verdict {
	if l.Owner.BootID != me.boot {
		return verdict{why: "the machine was restarted"}
	}
	if l.State == Bound {
		return judgeBound(w, me, l)
	}
	return judgeReserved(w, me, l)
}

// phase returns the phase of the lease l, whose verdict is v.
func (v verdict) phase(w system, me self, l Lease) Phase {
	switch {
	case !v.live:
		return Ended
	case v.making && findInit(w, l) == nil && hasNoProcesses(w, me, l):
		return Starting
	}
	return Running
}

// hasNoProcesses reports whether the container of a lease that is being made has no processes. The cgroup
// of an engine's container is unknown until the lease is bound, and the container's command doesn't run before.
func hasNoProcesses(w system, me self, l Lease) bool {
	found := findProcesses(w, me, l)
	return found == no || found == unknown && l.Owner.Engine
}

// engineLimit is how long an engine may take to create the container of a reserved lease.
const engineLimit = time.Minute

// isOverdue reports whether a reserved lease is an engine's that has had its time to create the container.
// It is false if the time since boot can't be read, now or when the lease was taken: both are then 0.
func isOverdue(w system, l Lease) bool {
	if !l.Owner.Engine || l.Ticks == 0 {
		return false
	}
	_, uptime := w.Now()
	return uptime-time.Duration(l.Ticks)*process.Tick > engineLimit
}

func judgeBound(w system, me self, l Lease) verdict {
	p := l.Owner.Process
	foreign := p.Namespace != me.Namespace
	if !foreign {
		alive, err := isAlive(w, p)
		if err != nil {
			return undecided(err)
		}
		if alive {
			return verdict{live: true}
		}
	}
	switch findProcesses(w, me, l) {
	case yes:
		if foreign {
			return verdict{live: true}
		}
		if l.Owner.Reaper && !l.Owner.OwnCgroup {
			return verdict{why: fmt.Sprintf("init (process %d) and its pid namespace have ended; its cgroup is others', too", p.PID)}
		}
		return verdict{live: true, why: fmt.Sprintf("init (process %d) has ended, others live in its cgroup", p.PID)}
	case unknown:
		switch {
		case foreign || l.Owner.Cgroup != "":
			return verdict{live: true, why: "can't be told from here: the holder is in another namespace"}
		case !l.Owner.Reaper:
			return verdict{live: true, why: fmt.Sprintf("can't be told: init (process %d) has ended, and where the others would be isn't known", p.PID)}
		}
		return verdict{why: fmt.Sprintf("init (process %d) and its pid namespace have ended", p.PID)}
	}
	return verdict{why: fmt.Sprintf("init (process %d) has ended and its cgroup is empty", p.PID)}
}

func judgeReserved(w system, me self, l Lease) verdict {
	p := l.Owner.Process
	if p.Namespace != me.Namespace {
		return judgeForeign(w, me, l)
	}
	alive, err := isAlive(w, p)
	if err != nil {
		v := undecided(err)
		v.making = true
		return v
	}
	if alive && !isOverdue(w, l) {
		return verdict{live: true, making: true} // still being made, or run in the foreground
	}
	gone := fmt.Sprintf("its maker (process %d) is gone", p.PID)
	if alive {
		gone = fmt.Sprintf("its engine (process %d) has had %v", p.PID, engineLimit)
	}
	// Runtimes write pid file and state before they end, so they are read after it.
	if b := findInit(w, l); b != nil {
		return verdict{live: true, bound: b}
	}
	if err := findStuckInit(w, l); err != nil {
		return undecided(err)
	}
	switch findProcesses(w, me, l) {
	case yes:
		return verdict{live: true, why: gone + ", but processes live in its cgroup"}
	case unknown:
		if l.Owner.Cgroup != "" {
			return verdict{live: true, why: "can't be told from here: the holder is in another namespace"}
		}
		if _, made := runtimeState(w, l); made {
			return verdict{live: true, why: "can't be told: its init has ended, and where the others would be isn't known"}
		}
	}
	if alive {
		return verdict{why: gone + " and created no container"}
	}
	return verdict{why: gone + " and left no container"}
}

// judgeForeign judges a lease whose maker is in another pid namespace, by the cgroups of maker and
// container.
func judgeForeign(w system, me self, l Lease) verdict {
	container := findProcesses(w, me, l)
	_, made := runtimeState(w, l)
	maker := cgroupPopulated(w, me, l.Owner, l.Owner.Maker)
	if isOverdue(w, l) {
		maker = no
	}
	switch {
	case container == yes || maker == yes:
		return verdict{live: true, making: maker == yes}
	case maker == no && (container == no || l.Owner.Cgroup == "" && !made):
		return verdict{why: "the cgroups of its maker and its container are empty"}
	}
	return verdict{live: true, why: "can't be told from here: the holder is in another namespace"}
}

func undecided(err error) verdict { return verdict{live: true, why: "can't be told: " + err.Error()} }

// isAlive reports whether just this process exists, not another one with its pid.
func isAlive(w system, p Process) (bool, error) {
	s, err := w.Process(p.PID)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && s.Start == p.Start && !s.Dead, err
}

type answer int

const (
	unknown answer = iota
	yes
	no
)

// findProcesses reports whether processes are in the container's cgroup: the recorded one, or else
// the one in the runtime's state.
func findProcesses(w system, me self, l Lease) answer {
	if l.Owner.Cgroup != "" {
		return cgroupPopulated(w, me, l.Owner, l.Owner.Cgroup)
	}
	own, _ := runtimeState(w, l)
	return cgroupPopulated(w, me, l.Owner, own)
}

// runtimeState says whether the lease's container was made, and in which cgroup, "" if that isn't
// known. The state of an earlier container with the same id is ignored.
func runtimeState(w system, l Lease) (cgroup string, made bool) {
	for _, c := range w.Claims(l.Owner) {
		if c.recorded != 0 && c.recorded >= l.Ticks {
			return ownCgroup(c.own), true
		}
	}
	return "", false
}

// cgroupPopulated reports whether processes are in a cgroup of the owner. It is unknown for the root
// cgroup, and for an owner of another cgroup namespace, because its path means another cgroup here.
func cgroupPopulated(w system, me self, o Owner, path string) answer {
	if path == "" || path == "/" || o.CgroupNS != me.cgroupNS || me.partialTree {
		return unknown
	}
	populated, err := w.Populated(path)
	switch {
	case err != nil:
		return unknown
	case populated:
		return yes
	case me.hidesPIDs && o.Process.Namespace != me.Namespace:
		return unknown
	}
	return no
}

// findInit looks for the container that a lease was reserved for. A claim counts if its process
// lives and is no older than the lease, and if the source recorded when it started. A pid without a
// start time counts only if the process is in the expected cgroup, because the pid may have been
// reused.
func findInit(w system, l Lease) *Lease {
	for _, c := range w.Claims(l.Owner) {
		expected := l.Owner.Cgroup
		switch {
		case c.seen.Dead, c.seen.Start < l.Ticks:
			continue
		case c.recorded != 0 && c.recorded != c.seen.Start:
			continue
		case c.recorded == 0 && expected != "" && !cgroup.IsWithin(c.in, expected):
			continue
		case expected == "" && (c.recorded != 0 || cgroup.IsWithin(c.in, c.own)):
			expected = ownCgroup(c.own)
		}
		l.State = Bound
		l.Owner.Process = Process{PID: c.pid, Start: c.seen.Start, Namespace: l.Owner.Process.Namespace}
		l.Owner.Cgroup, l.Owner.Reaper = expected, w.Reaper(c.pid)
		return &l
	}
	return nil
}

// findStuckInit returns an error if the container's init can't be read, nil otherwise.
func findStuckInit(w system, l Lease) error {
	for _, c := range w.Claims(l.Owner) {
		if c.stuck != nil {
			return fmt.Errorf("process %d: %w", c.pid, c.stuck)
		}
	}
	return nil
}

// isHalted reports whether the waiter's process is halted, and so can't take a lease now. It is false for
// a process in another pid namespace, which can't be examined.
func isHalted(w system, me self, wt waiter) bool {
	return wt.Process.Namespace == me.Namespace && w.Halted(wt.Process.PID)
}

// reconnectTime is how long a request stays in the queue after its server has ended, so that its process can ask
// another server.
const reconnectTime = 10 * time.Second

// hasUnnoticedEnd reports whether the waiter's server has ended, and the ticket doesn't say so yet. It is false for
// a server in another pid namespace, which can't be examined.
func hasUnnoticedEnd(w system, me self, wt waiter) bool {
	if wt.ServerPID == 0 || wt.ServerEnded != 0 || wt.serverProcess().Namespace != me.Namespace {
		return false
	}
	alive, err := isAlive(w, wt.serverProcess())
	return !alive && err == nil
}

// stillWaits reports whether a waiter's process still waits.
func stillWaits(w system, me self, wt waiter) bool {
	if wt.Owner.BootID != me.boot {
		return false
	}
	if _, uptime := w.Now(); wt.ServerEnded != 0 && uptime-wt.ServerEnded > reconnectTime {
		return false
	}
	if wt.Process.Namespace != me.Namespace {
		return cgroupPopulated(w, me, wt.Owner, wt.Cgroup) != no
	}
	alive, err := isAlive(w, wt.Process)
	return alive || err != nil
}
