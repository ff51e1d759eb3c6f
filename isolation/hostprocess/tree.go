package hostprocess

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/process"
)

// Moved is the result of [Host.MoveTree].
type Moved struct {
	// PIDs of the processes that are in the cgroup now.
	PIDs []int
	// Remarks name descendants that stay where they are, and why. There is one more line for those beyond the first.
	Remarks []string
}

// maxRounds bounds how often MoveTree searches for descendants that were started before their parent was moved, and
// maxRemarks how many descendants the remarks name.
const (
	maxRounds  = 16
	maxRemarks = 5
)

// MoveTree moves a process and its descendants into a cgroup, parents first: what a moved process starts is
// in the cgroup by itself. skip, which may be 0, stays where it is, and so does a process whose parent has ended.
//
// move examines a process and moves it. It returns false if the process is in the cgroup already. A descendant for which it
// returns an error stays where it is, with a remark.
//
// The error is move's for root, which was not moved then, and neither was any other. Afterwards the end of root or of ctx
// ends the search, and is no error.
func (h Host) MoveTree(ctx context.Context, root *Process, group string, skip int, move func(*Process) (moved bool, err error)) (m Moved, err error) {
	if _, err := move(root); err != nil {
		return m, err
	}
	done, refused := map[int]bool{root.PID: true, skip: true}, 0
	for round := range maxRounds {
		outside := false
		for _, d := range listDescendants(h.Proc, root.PID) {
			if done[d.pid] || ctx.Err() != nil {
				continue
			}
			done[d.pid] = true
			moved, err := h.moveDescendant(d, root, move)
			if err != nil {
				if refused++; refused <= maxRemarks {
					m.Remarks = append(m.Remarks, fmt.Sprintf("a child process stays outside of the lease: %v", err))
				}
			}
			outside = outside || moved // it may have started another before
		}
		if !outside || ctx.Err() != nil {
			break
		}
		if round == maxRounds-1 {
			m.Remarks = append(m.Remarks, fmt.Sprintf("process %d starts others faster than they can be moved: some may be outside of the lease", root.PID))
		}
	}
	if refused > maxRemarks {
		m.Remarks = append(m.Remarks, fmt.Sprintf("%d child processes stay outside of the lease", refused))
	}
	if ctx.Err() != nil {
		m.Remarks = append(m.Remarks, "interrupted: child processes may be outside of the lease")
	}
	m.PIDs, err = h.Tree.PIDs(group)
	if err != nil {
		m.Remarks = append(m.Remarks, fmt.Sprintf("the processes of the lease can't be counted: %v", err))
	}
	return m, nil
}

// moveDescendant moves a process that was listed as a descendant of root. A process that has ended, or that has got the pid of
// one, is no error.
func (h Host) moveDescendant(d descendant, root *Process, move func(*Process) (bool, error)) (moved bool, err error) {
	p, err := Open(d.pid, root.UID)
	if err != nil {
		return false, nil
	}
	defer p.Close()
	if parent, err := process.Parent(h.Proc, d.pid); err != nil || parent != d.parent || !root.IsAlive() {
		return false, nil //nolint:nilerr // it has ended, or has lost its parent
	}
	moved, err = move(p)
	if errors.Is(err, errEnded) {
		return false, nil // its children are no descendants any more
	}
	return moved, err
}

// descendant is a process, and the parent that it had when it was listed.
type descendant struct{ pid, parent int }

// listDescendants returns the descendants of a process, each after its parent. Those that start or end
// during the call may be left out, and a pid may have been reused. It reads one file of each process of the host.
func listDescendants(proc string, root int) (all []descendant) {
	children := map[int][]descendant{}
	for _, pid := range process.List(proc) {
		if parent, err := process.Parent(proc, pid); err == nil {
			children[parent] = append(children[parent], descendant{pid, parent})
		}
	}
	all, seen := slices.Clone(children[root]), map[int]bool{root: true}
	for i := 0; i < len(all); i++ { // after a reuse of pids a process can seem to be its own ancestor
		if pid := all[i].pid; !seen[pid] {
			seen[pid] = true
			all = append(all, children[pid]...)
		}
	}
	return all
}

// IsDescendant reports whether a process is another one, or has it among its ancestors. Pids may be reused during the call.
func IsDescendant(proc string, pid, ancestor int) bool {
	const deepest = 1 << 10 // bounds the loop if pids are reused meanwhile
	for range deepest {
		if pid == ancestor {
			return true
		}
		parent, err := process.Parent(proc, pid)
		if err != nil || parent <= 1 {
			return false
		}
		pid = parent
	}
	return false
}
