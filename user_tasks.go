package berth

import (
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/hostprocess"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// UserTask is a running task of a user without root. It is found without a file of the user's, who writes the task's
// record and may put anything there.
type UserTask struct {
	ID  string
	UID int
	// Cgroup is the task's.
	Cgroup string
	// Started is when the container's first process was started, which a restart changes.
	Started time.Time
	// Name and Command are what the user has told the broker, "" if the task has no lease of its own. Program is the name of the
	// container's first process, at most 15 bytes. The user can set all of them to any text.
	Name, Command, Program string
	// Ranks are the ids of the ranks of a gang that run, sorted; nil for another task.
	Ranks []string
	// Lease holds the devices of the task, and of all others in it; nil without one.
	Lease *ledger.Lease
}

// taskContainer is the cgroup of a task's container below the task's own.
const taskContainer = "container"

// ListUserTasks returns the running tasks of users without root, in no order. They are found by their containers' cgroups, below those that the
// broker makes, or that a user makes in a subtree that the user owns. If the ledger can't be read, they have no leases. isID reports whether
// a name is a task's id. A user can make a cgroup that looks like a task of the same user, and none that looks like another user's. Only
// root sees all of them.
//
// It reads the kernel's record of each process, and nothing that can wait for the process or for a file server of its user.
func (n *Node) ListUserTasks(isID func(name string) bool) (all []UserTask) {
	leases, err := n.Leases()
	if err != nil {
		leases = nil // the tasks run nevertheless
	}
	proc := n.config.GPUHost().ProcPath()
	found := map[string]userProcess{} // the first process by the task's cgroup
	ranks := map[string][]string{}    // those of gangs
	for _, pid := range process.List(proc) {
		at, err := n.cgroups.ProcessPath(proc, pid)
		if err != nil {
			continue // it has ended
		}
		group, id, rank, ok := parseTaskCgroup(at, isID)
		if !ok {
			continue
		}
		start, err := process.Start(proc, pid)
		if err != nil || !process.Lives(proc, pid, start) {
			continue
		}
		task := path.Join(CommandTasks(group), id)
		if first, ok := found[task]; !ok || start < first.start {
			found[task] = userProcess{pid, start, group}
		}
		if rank != "" && !slices.Contains(ranks[task], rank) {
			ranks[task] = append(ranks[task], rank)
		}
	}
	for task, first := range found {
		if t, ok := n.describeUserTask(task, first, leases); ok {
			t.Ranks = slices.Sorted(slices.Values(ranks[task]))
			all = append(all, t)
		}
	}
	return all
}

// userProcess is a process of a task. group is the cgroup of the command around it.
type userProcess struct {
	pid   int
	start uint64
	group string
}

// parseTaskCgroup returns the outermost cgroup of a command around a path, and the id of the task in it whose container is at that
// path, or that of a gang and the id of its rank there; rank is "" for another task. Users make no cgroups outside of the former, except
// in subtrees that they own.
func parseTaskCgroup(at string, isID func(string) bool) (group, id, rank string, ok bool) {
	parts := strings.Split(at, "/")
	for i := 0; i+3 < len(parts); i++ {
		if _, _, _, ok := parseCommandCgroup(parts[i]); !ok || "/"+parts[i+1] != commandTasks || !isID(parts[i+2]) {
			continue
		}
		if group, id = strings.Join(parts[:i+1], "/"), parts[i+2]; parts[i+3] == taskContainer {
			return group, id, "", true
		}
		if i+4 < len(parts) && isID(parts[i+3]) && parts[i+4] == taskContainer {
			return group, id, parts[i+3], true
		}
	}
	return "", "", "", false
}

// isOfThisHost reports whether this host's berth has made the cgroup of a command. Hosts in containers of the machine have trees of their own
// below this one's: the process that a cgroup outside of /berth is named after has to see the same tree.
func (n *Node) isOfThisHost(group string) bool {
	if cgroup.IsWithin(group, commandParent) {
		return true
	}
	pid, start, namespace, ok := parseCommandCgroup(group)
	proc := n.config.GPUHost().ProcPath()
	own, err := process.Namespace(proc, os.Getpid())
	if !ok || err != nil || namespace != own || !process.Lives(proc, pid, start) {
		return false
	}
	view, err := process.NamespaceOf(proc, os.Getpid(), "cgroup")
	if err != nil {
		return false
	}
	other, err := process.NamespaceOf(proc, pid, "cgroup")
	return err == nil && other == view
}

// describeUserTask returns what is known of a task. ok is false for a task of root's, and for one of another host.
func (n *Node) describeUserTask(task string, first userProcess, leases []ledger.Lease) (t UserTask, ok bool) {
	if !n.isOfThisHost(first.group) {
		return t, false
	}
	uid := n.readCgroupOwner(CommandTasks(first.group)) // the broker gives it to the user
	if uid <= 0 {
		return t, false
	}
	t = UserTask{
		ID: path.Base(task), UID: uid, Cgroup: task, Started: time.Now().Add(-process.Age(first.start)),
		Program: n.ProcessHost().Name(&hostprocess.Process{Process: ledger.Process{PID: first.pid}}),
	}
	if l := FindInnermost(leases, task); IsCommandCgroup(l.Owner.Cgroup) {
		t.Lease = &l
	}
	if t.Lease != nil && t.Lease.Owner.Cgroup == first.group && n.isTaskLease(*t.Lease) {
		t.Name, t.Command = t.Lease.Owner.Name, t.Lease.Owner.Command
	}
	return t, true
}

// isTaskLease reports whether a command's lease is that of a single task: its process, the launcher or the monitor, is in a user
// namespace of its own, as no process of berth alloc is. It is false if the process has ended.
func (n *Node) isTaskLease(l ledger.Lease) bool {
	proc := n.config.GPUHost().ProcPath()
	own, err := process.NamespaceOf(proc, os.Getpid(), "user")
	if err != nil || !process.Lives(proc, l.Owner.Process.PID, l.Owner.Process.Start) {
		return false
	}
	other, err := process.NamespaceOf(proc, l.Owner.Process.PID, "user")
	return err == nil && other != own
}
