// Package cgroup finds, makes and empties control groups on both versions of
// the cgroup file system.
//
// A [Hierarchy] is one tree. Which one matters is decided once, by [Detect]: the
// unified tree where the machine has only that, otherwise version 1's devices
// tree, because that is where the walls are and where every runtime puts every
// container; a hybrid machine counts as version 1. Paths are below the mount
// point, as the host sees them: "/berth/4f0c…".
//
// The package doesn't set limits or device rules, and it starts no daemon: it
// answers "is anything alive in there?", which is a lease's proof of life, and
// kills and removes what is.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// Errors that callers branch on.
var (
	// ErrNone: no usable cgroup file system is mounted there.
	ErrNone = errors.New("no cgroup file system")
	// ErrPath: a path that leaves the hierarchy, or that names no cgroup.
	ErrPath = errors.New("not a cgroup path")
)

// Version of the cgroup file system.
type Version int

// The versions.
const (
	V1 Version = 1
	V2 Version = 2
)

// Hierarchy is one cgroup tree of the machine: plain data, safe to copy.
type Hierarchy struct {
	Version Version
	// Root is where the tree is mounted: "/sys/fs/cgroup" on version 2,
	// "/sys/fs/cgroup/devices" on version 1.
	Root string
	// Mount is what Detect was given. On version 1 the other trees are below it.
	Mount string
	// Controller is the tree's controller on version 1, "" on version 2.
	Controller string
	// Hybrid says that there is a unified tree beside those of version 1.
	Hybrid bool
}

// Detect looks at a mount point, usually /sys/fs/cgroup ("" means that), and
// returns the tree that decides about devices.
func Detect(mount string) (Hierarchy, error) {
	if mount == "" {
		mount = "/sys/fs/cgroup"
	}
	magic := func(path string) int64 {
		var st unix.Statfs_t
		if err := unix.Statfs(path, &st); err != nil {
			return 0
		}
		return st.Type
	}
	if magic(mount) == unix.CGROUP2_SUPER_MAGIC {
		return Hierarchy{Version: V2, Root: mount, Mount: mount}, nil
	}
	devices := filepath.Join(mount, "devices")
	if magic(devices) != unix.CGROUP_SUPER_MAGIC {
		return Hierarchy{}, fmt.Errorf("detect cgroup version at %s: %w", mount, ErrNone)
	}
	hybrid := magic(filepath.Join(mount, "unified")) == unix.CGROUP2_SUPER_MAGIC
	return Hierarchy{Version: V1, Root: devices, Mount: mount, Controller: "devices", Hybrid: hybrid}, nil
}

// Tree returns the tree that holds a controller ("memory", "cpu", "cpuset",
// "pids", …), and false if the machine has none. On version 2 there is one tree;
// whether a controller may be used at a path of it is [Hierarchy.Available].
func (h Hierarchy) Tree(controller string) (Hierarchy, bool) {
	if h.Version == V2 {
		ok, err := h.Available("/", controller)
		return h, ok && err == nil
	}
	root := filepath.Join(h.Mount, controller)
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil || st.Type != unix.CGROUP_SUPER_MAGIC {
		return Hierarchy{}, false
	}
	h.Root, h.Controller = root, controller
	return h, true
}

// Available says whether the controller can limit the cgroup at path. On
// version 2 its ancestors decide that; on version 1 each controller has a tree
// of its own, so the answer is whether that tree exists.
func (h Hierarchy) Available(path, controller string) (bool, error) {
	if h.Version == V1 {
		_, ok := h.Tree(controller)
		return ok, nil
	}
	b, err := h.read(path, "cgroup.controllers")
	if err != nil {
		return false, err
	}
	return slices.Contains(strings.Fields(string(b)), controller), nil
}

// Dir is where the cgroup at path is in the file system. A path that isn't
// absolute or that has an element ".." is ErrPath: such a path is either hostile
// or one that another cgroup namespace made.
func (h Hierarchy) Dir(path string) (string, error) {
	clean, err := clean(path)
	if err != nil {
		return "", err
	}
	return filepath.Join(h.Root, clean), nil
}

// Rel is the inverse of Dir: it turns a directory below the mount point, as
// runtimes write them into their state, into a cgroup path.
func (h Hierarchy) Rel(dir string) (string, bool) {
	rest, ok := strings.CutPrefix(filepath.Clean(dir), filepath.Clean(h.Root))
	if !ok || (rest != "" && rest[0] != '/') {
		return "", false
	}
	path, err := clean("/" + rest)
	return path, err == nil
}

// Within says that path is top or below it.
func Within(path, top string) bool {
	return path == top || strings.HasPrefix(path, strings.TrimSuffix(top, "/")+"/")
}

func clean(path string) (string, error) {
	bad := !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "\x00\n") ||
		slices.Contains(strings.Split(path, "/"), "..")
	if bad {
		return "", fmt.Errorf("%w: %q", ErrPath, path)
	}
	return filepath.Clean(path), nil
}

// read returns a control file of the cgroup at path.
func (h Hierarchy) read(path, file string) ([]byte, error) {
	dir, err := h.Dir(path)
	if err != nil {
		return nil, err
	}
	return smallfile.Read(filepath.Join(dir, file), maxFile)
}

// maxFile is the size of a control file that is believed: a line for each process.
const maxFile = 64 << 20

// gone says that the error means that the cgroup doesn't exist any more: a
// control file that was open when its cgroup was removed gives ENODEV.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}
