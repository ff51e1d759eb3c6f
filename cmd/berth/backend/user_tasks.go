package backend

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
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

// FindUserTask returns the task of a user without root with this id, or the gang whose rank has it. Beginnings of ids, and
// names, aren't looked up: users choose them. It finds none if there are several: a user can make a cgroup that looks like a task with the id of another user's.
func FindUserTask(conf berth.Config, id string) (t berth.UserTask, found bool) {
	if !tasks.ValidID(id) {
		return t, false
	}
	all := slices.DeleteFunc(ListUserTasks(conf), func(t berth.UserTask) bool { return t.ID != id && !slices.Contains(t.Ranks, id) })
	if len(all) != 1 {
		return t, false
	}
	return all[0], true
}

// RefuseUserTask returns the error for a task of a user without root, which says how root ends the task.
func RefuseUserTask(conf berth.Config, t berth.UserTask) error {
	ends := fmt.Sprintf("echo 1 >%s ends it", QuoteForShell(filepath.Join(cmp.Or(conf.Host.Cgroup, "/sys/fs/cgroup"), t.Cgroup, "cgroup.kill")))
	if t.Lease != nil {
		ends = fmt.Sprintf("berth release %s ends its lease with all processes", t.Lease.ID)
	}
	return fmt.Errorf("task %s: %w user %s, who alone has its record; %s", t.ID, ErrElsewhere, output.FindUserName(t.UID), ends)
}

// QuoteForShell returns a text as a word of a shell's command line.
func QuoteForShell(text string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._:@%+=,-"
	if text != "" && strings.Trim(text, plain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
