package backend

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// ListUserTasks returns the running tasks of users without root. It returns none if this process isn't root of the machine, or
// without cgroups.
func ListUserTasks(conf berth.Config) []berth.UserTask {
	if verb.NeedRoot() != nil {
		return nil
	}
	node, err := berth.Open(conf)
	if err != nil {
		return nil
	}
	return node.ListUserTasks(tasks.ValidID)
}

// FindUserTask returns the task of a user without root with this id, beginning of an id, or name.
func FindUserTask(conf berth.Config, word string) (t berth.UserTask, found bool) {
	if word == "" {
		return t, false
	}
	all := ListUserTasks(conf)
	for _, matches := range []func(t berth.UserTask) bool{
		func(t berth.UserTask) bool { return t.ID == word },
		func(t berth.UserTask) bool { return strings.HasPrefix(t.ID, word) },
		func(t berth.UserTask) bool { return t.Name == word },
	} {
		for _, t := range all {
			if matches(t) {
				return t, true
			}
		}
	}
	return t, false
}

// RefuseUserTask returns the error for a task of a user without root, which says how root ends the task.
func RefuseUserTask(conf berth.Config, t berth.UserTask) error {
	ends := fmt.Sprintf("echo 1 >%s ends it", filepath.Join(cmp.Or(conf.Host.Cgroup, "/sys/fs/cgroup"), t.Cgroup, "cgroup.kill"))
	if t.Lease != nil {
		ends = fmt.Sprintf("berth release %s ends its lease with all processes", t.Lease.ID)
	}
	return fmt.Errorf("task %s: %w user %s, who alone has its record; %s", t.ID, ErrElsewhere, output.FindUserName(t.UID), ends)
}
