package tasks

import (
	"cmp"
	"os"
	"path/filepath"
)

// CgroupParent is the default parent of tasks' cgroups.
const CgroupParent = "/berth"

// Paths are the paths of a task. They follow from its id and from two links in its directory, so that
// the files of a killed launcher can be removed without a record.
type Paths struct {
	ID string
	// Dir is the task's directory, and RuntimeState the directory in which each runtime
	// keeps its containers.
	Dir, RuntimeState string
}

// Paths returns the paths of a task, which needn't exist.
func (s Store) Paths(id string) Paths {
	return Paths{ID: id, Dir: s.Dir(id), RuntimeState: filepath.Join(cmp.Or(s.State, "/run/berth"), "runtime")}
}

// In returns the path of a file in the task's directory.
func (p Paths) In(name string) string { return filepath.Join(p.Dir, name) }

// Bundle is the OCI bundle.
func (p Paths) Bundle() string { return p.In("bundle") }

// PIDFile has the pid of the container's init. The runtime writes it.
func (p Paths) PIDFile() string { return p.In("bundle/pid") }

// RuntimeLog is the runtime's log, in JSON.
func (p Paths) RuntimeLog() string { return p.In("bundle/log") }

// RuntimeLink is a link to the runtime's program. The launcher creates it before anything runs.
func (p Paths) RuntimeLink() string { return p.In("runtime") }

// ParentLink is a link to the cgroup above the task's, as a path of the cgroup file system.
// The launcher creates it before anything runs.
func (p Paths) ParentLink() string { return p.In("parent") }

// RuntimeRoot is the --root of a runtime.
func (p Paths) RuntimeRoot(runtime string) string {
	return filepath.Join(p.RuntimeState, filepath.Base(runtime))
}

// Cgroup returns the task's cgroup, which is above the cgroups of all its processes. Without a
// ParentLink the launch was interrupted before the task had processes; CgroupParent is then used.
func (p Paths) Cgroup() string {
	parent, err := os.Readlink(p.ParentLink())
	if err != nil {
		parent = CgroupParent
	}
	return filepath.Join(parent, p.ID)
}
