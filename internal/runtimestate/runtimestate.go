// Package runtimestate reads what OCI runtimes record about their containers: runc's
// state.json and crun's status, in a directory per container below the runtime's state
// directory.
//
// Records may be of containers that have ended: callers must compare the process's start time. Missing, too large and
// unreadable files are skipped.
package runtimestate

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// Container is a runtime's record of a container.
type Container struct {
	// Root is the runtime's state directory, in which ID is unique.
	Root, ID string
	// PID and Start identify the container's init; Start is in clock ticks since boot.
	PID   int
	Start uint64
	// CgroupDirs has the cgroup's directories by controller, that of version 2 under "". Only runc records them.
	CgroupDirs map[string]string
	// CgroupPath is the cgroup's path below the mount point. Only crun records it.
	CgroupPath string
	// Bundle is the directory of config.json, "" if it isn't known.
	Bundle string
}

// MaxSpec is the most bytes of a bundle's config.json that berth reads. Engines write 10 to 100 kB.
const MaxSpec = 16 << 20

// maxState bounds a record, in bytes. runc's state.json contains the whole config.json, with each character escaped by up
// to six.
const maxState = 8 * MaxSpec

// Read reads the records of a container: those of runc and crun that exist.
func Read(root, id string) (all []Container) {
	if id == "" || id == "." || id == ".." || strings.ContainsRune(id, '/') {
		return nil
	}
	for _, read := range []func(dir string) (Container, bool){readRunc, readCrun} {
		if c, ok := read(filepath.Join(root, id)); ok {
			c.Root, c.ID = root, id
			all = append(all, c)
		}
	}
	return all
}

// List reads the records of all containers below the state directories. Directories that
// cannot be read have none.
func List(roots []string) (all []Container) {
	for _, root := range roots {
		ids, err := smallfile.Names(root)
		if err != nil {
			continue
		}
		slices.Sort(ids)
		for _, id := range ids {
			all = append(all, Read(root, id)...)
		}
	}
	return all
}

// readRunc reads state.json, as runc 1.0 to 1.3 write it.
func readRunc(dir string) (Container, bool) {
	var s struct {
		PID     int               `json:"init_process_pid"`
		Start   uint64            `json:"init_process_start"`
		Cgroups map[string]string `json:"cgroup_paths"`
		Config  struct {
			Labels []string `json:"labels"`
		} `json:"config"`
	}
	if !decodeFile(filepath.Join(dir, "state.json"), &s) || s.PID <= 0 {
		return Container{}, false
	}
	c := Container{PID: s.PID, Start: s.Start, CgroupDirs: s.Cgroups}
	for _, label := range s.Config.Labels { // the last one is runc's: an annotation may be called bundle
		if bundle, ok := strings.CutPrefix(label, "bundle="); ok {
			c.Bundle = bundle
		}
	}
	return c, true
}

// readCrun reads status, as crun 0.x and 1.x write it.
func readCrun(dir string) (Container, bool) {
	var s struct {
		PID    int    `json:"pid"`
		Start  uint64 `json:"process-start-time"`
		Cgroup string `json:"cgroup-path"`
		Bundle string `json:"bundle"`
	}
	if !decodeFile(filepath.Join(dir, "status"), &s) || s.PID <= 0 {
		return Container{}, false
	}
	c := Container{PID: s.PID, Start: s.Start, Bundle: s.Bundle}
	if s.Cgroup != "" {
		c.CgroupPath = filepath.Clean("/" + s.Cgroup)
	}
	return c, true
}

func decodeFile(path string, into any) bool {
	data, err := ReadFile(path, maxState)
	return err == nil && json.Unmarshal(data, into) == nil
}

// ReadFile reads a file that a runtime has left: a regular one of at most limit bytes. It follows no link
// in the last element, and never blocks.
func ReadFile(path string, limit int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // only read from
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("not a regular file")
	}
	return smallfile.ReadFD(fd, st.Size, limit)
}
