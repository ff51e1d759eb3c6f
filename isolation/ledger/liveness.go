package ledger

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/berth-gpu/berth/isolation/cgroup"
)

// verdict is what the world says about one lease.
type verdict struct {
	live bool
	// making: who took the lease lives, and may be about to use it.
	making bool
	// why not, or what is remarkable about its life.
	why string
	// bound is the lease as it should be recorded from now on, where a reserved
	// one turned out to have become a container.
	bound *Lease
}

// judge decides whether the holder of a lease lives. In doubt it does: a lease
// that is kept for too long is a nuisance, one that is freed too early is two
// tasks on one GPU.
func judge(w system, me self, l Lease) verdict {
	if l.Owner.BootID != me.boot {
		return verdict{why: "the machine was restarted"}
	}
	if l.State == Bound {
		return judgeBound(w, me, l)
	}
	return judgeReserved(w, me, l)
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
	if alive {
		return verdict{live: true, making: true} // still being made, or run in the foreground
	}
	// Runtimes write pid file and state before they end, so they are read after it.
	if b := findInit(w, l); b != nil {
		return verdict{live: true, bound: b}
	}
	switch findProcesses(w, me, l) {
	case yes:
		return verdict{live: true, why: fmt.Sprintf("its maker (process %d) is gone, but processes live in its cgroup", p.PID)}
	case unknown:
		if l.Owner.Cgroup != "" {
			return verdict{live: true, why: "can't be told from here: the holder is in another namespace"}
		}
		if _, made := runtimeState(w, l); made {
			return verdict{live: true, why: "can't be told: its init has ended, and where the others would be isn't known"}
		}
	}
	return verdict{why: fmt.Sprintf("its maker (process %d) is gone and left no container", p.PID)}
}

// judgeForeign is about a maker in another pid namespace: cgroups decide.
func judgeForeign(w system, me self, l Lease) verdict {
	container := findProcesses(w, me, l)
	_, made := runtimeState(w, l)
	maker := cgroupPopulated(w, me, l.Owner, l.Owner.Maker)
	switch {
	case container == yes || maker == yes:
		return verdict{live: true, making: maker == yes}
	case maker == no && (container == no || l.Owner.Cgroup == "" && !made):
		return verdict{why: "the cgroups of its maker and its container are empty"}
	}
	return verdict{live: true, why: "can't be told from here: the holder is in another namespace"}
}

func undecided(err error) verdict { return verdict{live: true, why: "can't be told: " + err.Error()} }

// isAlive says whether just this process exists, not another one with its pid.
func isAlive(w system, p Process) (bool, error) {
	s, err := w.Process(p.PID)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && s.start == p.Start && !s.dead, err
}

type answer int

const (
	unknown answer = iota
	yes
	no
)

// findProcesses asks the container's cgroup for life: the one that is recorded, or
// else the one that its runtime knows.
func findProcesses(w system, me self, l Lease) answer {
	if l.Owner.Cgroup != "" {
		return cgroupPopulated(w, me, l.Owner, l.Owner.Cgroup)
	}
	own, _ := runtimeState(w, l)
	return cgroupPopulated(w, me, l.Owner, own)
}

// runtimeState says whether the lease's container was made, and in which cgroup,
// "" if that isn't known. The state of an earlier life says nothing.
func runtimeState(w system, l Lease) (cgroup string, made bool) {
	for _, c := range w.Claims(l.Owner) {
		if c.recorded != 0 && c.recorded >= l.Ticks {
			return ownCgroup(c.own), true
		}
	}
	return "", false
}

// cgroupPopulated asks a cgroup of the owner's for life. The root says nothing about
// anybody, and what another cgroup namespace calls a cgroup may be any here.
func cgroupPopulated(w system, me self, o Owner, path string) answer {
	if path == "" || path == "/" || o.CgroupNS != me.cgroupNS || me.elsewhere {
		return unknown
	}
	populated, err := w.Populated(path)
	switch {
	case err != nil:
		return unknown
	case populated:
		return yes
	case me.blind && o.Process.Namespace != me.Namespace:
		return unknown
	}
	return no
}

// findInit looks for the container that a lease was reserved for. A claim counts
// if its process lives and is no older than the lease, and if the source recorded
// when it started. A bare pid counts only where the container was expected: any
// process can have it by now.
func findInit(w system, l Lease) *Lease {
	for _, c := range w.Claims(l.Owner) {
		expected := l.Owner.Cgroup
		switch {
		case c.seen.dead, c.seen.start < l.Ticks:
			continue
		case c.recorded != 0 && c.recorded != c.seen.start:
			continue
		case c.recorded == 0 && expected != "" && !cgroup.IsWithin(c.in, expected):
			continue
		case expected == "" && (c.recorded != 0 || cgroup.IsWithin(c.in, c.own)):
			expected = ownCgroup(c.own)
		}
		l.State = Bound
		l.Owner.Process = Process{PID: c.pid, Start: c.seen.start, Namespace: l.Owner.Process.Namespace}
		l.Owner.Cgroup, l.Owner.Reaper = expected, w.Reaper(c.pid)
		return &l
	}
	return nil
}

// stillWaits says whether a waiter's process still waits.
func stillWaits(w system, me self, wt waiter) bool {
	if wt.Owner.BootID != me.boot {
		return false
	}
	if wt.Process.Namespace != me.Namespace {
		return cgroupPopulated(w, me, wt.Owner, wt.Cgroup) != no
	}
	alive, err := isAlive(w, wt.Process)
	return alive || err != nil
}
