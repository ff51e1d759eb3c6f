package hostprocess

import (
	"errors"
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// Moved is the result of [Host.MoveTree].
type Moved struct {
	// PIDs of the processes that are in the cgroup now.
	PIDs []int
	// Remarks name descendants that stay where they are, and why.
	Remarks []string
}

// maxRounds bounds how often MoveTree searches for descendants that were started before their parent was moved.
const maxRounds = 16

// MoveTree moves a process and its descendants into a cgroup, parents first: what a moved process starts is
// in the cgroup by itself. These descendants stay where they are: those that Examine refuses, each with
// a remark; those for which stays is true; and skip, which may be 0. A descendant whose parent has
// ended is none.
//
// The error is nil once root is in the cgroup, even if it has ended since. An error that Is ErrRefused means
// that root can't be moved, and nothing was.
func (h Host) MoveTree(root *Process, group string, skip int, stays func(group string) bool) (m Moved, err error) {
	if err := h.Move(root, group); err != nil {
		return m, err
	}
	done := map[int]bool{root.PID: true, skip: true}
	for round := range maxRounds {
		outside := false
		for _, pid := range listDescendants(h.Proc, root.PID) {
			if done[pid] {
				continue
			}
			done[pid] = true
			moved, err := h.moveDescendant(pid, root.UID, group, stays)
			if err != nil {
				m.Remarks = append(m.Remarks, fmt.Sprintf("a child process stays outside of the lease: %v", err))
			}
			outside = outside || moved // it may have started another before
		}
		if !outside {
			break
		}
		if round == maxRounds-1 {
			m.Remarks = append(m.Remarks, fmt.Sprintf("process %d starts others faster than they can be moved: some may be outside of the lease", root.PID))
		}
	}
	m.PIDs, err = h.Tree.PIDs(group)
	return m, err
}

// moveDescendant moves one descendant. One that has ended, or that stays, is no error.
func (h Host) moveDescendant(pid, uid int, group string, stays func(group string) bool) (moved bool, err error) {
	p, err := Open(pid, uid)
	if err != nil {
		return false, nil // it has ended
	}
	defer p.Close()
	own, err := h.Examine(p)
	if err == nil && (cgroup.IsWithin(own, group) || stays(own)) {
		return false, nil
	}
	if err == nil {
		err = h.Move(p, group)
		moved = err == nil
	}
	if errors.Is(err, errEnded) {
		return false, nil // its children are no descendants any more
	}
	return moved, err
}

// listDescendants returns the pids of a process's descendants, each after its parent. Those that start or end
// during the call may be left out. It reads one file of each process of the host.
func listDescendants(proc string, root int) (all []int) {
	children := map[int][]int{}
	for _, pid := range process.List(proc) {
		if parent, err := process.Parent(proc, pid); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	all, seen := slices.Clone(children[root]), map[int]bool{root: true}
	for i := 0; i < len(all); i++ { // pids may have been reused meanwhile, so that a process is its own ancestor
		if !seen[all[i]] {
			seen[all[i]] = true
			all = append(all, children[all[i]]...)
		}
	}
	return all
}

// IsDescendant reports whether a process is another one, or has it among its ancestors.
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
