package berth

import (
	"regexp"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// stepCgroup matches the cgroup of a process of a Slurm step with cgroup version 2: the step's, and in it the part for the user's
// processes. Beside that part is the one of slurmstepd, which waits for all processes that hold the step's output.
const stepCgroup = `^(.*/job_[0-9]+/step_[^/]+)/user(/|$)`

// FindStep returns a cgroup that has processes for as long as the Slurm step runs that a process belongs to, "" if it belongs to none. A launcher is
// a process of the step that waits for the process, 0 for its parent: with a launcher that stays in the step it is the cgroup of the
// step's user processes. Without one, which is a process that Slurm itself has started, it is that of the whole step.
//
// A process that moves into the cgroup of a lease is out of reach for Slurm, which kills at the step's end what is in the step's cgroup.
func (n *Node) FindStep(pid, launcher int) string {
	own, err := n.cgroups.ProcessPath(n.ProcessHost().Proc, pid)
	if err != nil {
		return ""
	}
	found := regexp.MustCompile(stepCgroup).FindStringSubmatch(own) // here, because every program would compile it at its start
	if found == nil || n.readCgroupOwner(found[1]) != 0 {           // a directory that a user has named so
		return ""
	}
	if launcher == 0 || launcher == pid {
		if launcher, err = process.Parent(n.ProcessHost().Proc, pid); err != nil {
			return ""
		}
	}
	user := found[1] + "/user"
	if outside, err := n.cgroups.ProcessPath(n.ProcessHost().Proc, launcher); err != nil || !cgroup.IsWithin(outside, user) {
		return found[1]
	}
	return user
}
