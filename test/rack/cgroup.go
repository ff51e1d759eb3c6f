package rack

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// prefix is the beginning of the names of hosts' cgroups; the pid of the process that started the
// host follows.
const prefix = "berth-engines-"

// Sweep removes the cgroups of hosts whose starters were killed.
func Sweep() {
	for _, dir := range cgroups(prefix + "*") {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), prefix), "-")
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, fs.ErrNotExist) {
			_ = removeCgroups(filepath.Base(dir)) // another process may remove it at the same time
		}
	}
}

// cgroups returns the directories of a name directly below the machine's hierarchies.
func cgroups(name string) []string {
	unified, _ := filepath.Glob("/sys/fs/cgroup/" + name)
	each, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
	return append(unified, each...)
}

func removeCgroups(name string) (err error) {
	for range 100 { // processes that have ended take a moment to leave
		err = nil
		for _, root := range cgroups(name) {
			var dirs []string
			_ = filepath.WalkDir(root, func(path string, e fs.DirEntry, walk error) error {
				if walk == nil && e.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			for _, dir := range slices.Backward(dirs) {
				err = errors.Join(err, os.Remove(dir))
			}
		}
		if err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

// LeaveRoot makes the root cgroup of a host with version 2 like a machine's: the processes move
// into a cgroup below it, which later commands enter, and its controllers are enabled for children.
// A root that isn't the machine's own can't do that with processes in it, and crun tries for a
// second each time. Call it before engines are started.
func (h *Host) LeaveRoot() (err error) {
	for _, dir := range cgroups(h.name) {
		names, e := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		if e != nil {
			continue // version 1
		}
		inner := filepath.Join(dir, "init.scope")
		if err := os.MkdirAll(inner, 0o755); err != nil {
			return err
		}
		pids, e := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		err = errors.Join(err, e)
		for pid := range strings.FieldsSeq(string(pids)) {
			_ = os.WriteFile(filepath.Join(inner, "cgroup.procs"), []byte(pid), 0o644) // it may have ended
		}
		for name := range strings.FieldsSeq(string(names)) {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0o644))
		}
	}
	return err
}
