// Package cgroup finds, creates, enters, measures, kills and removes control groups
// on both versions of the cgroup file system.
//
// A [Hierarchy] is one cgroup tree. [Detect] decides which tree matters: the unified
// tree where the machine has only that one, otherwise version 1's devices tree, because
// it carries the device rules and every runtime puts every container into it. A hybrid
// machine counts as version 1. Paths are relative to the mount point as the host sees
// it: "/berth/4f0c…".
//
// A launched task lives in /berth/ID. The child "runtime" ([Hierarchy.StartRuntime])
// holds the OCI runtime's process; the container's own cgroup is another child, which
// the runtime creates and removes. The runtime is inside from its first instruction, so
// /berth/ID is populated until the last process of runtime and container has ended, even
// when the launcher is killed.
//
// The package writes no limits and no device rules: limits are the OCI runtime's,
// device rules are those of package devices.
package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
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
	// Top is the cgroup of version 2 below which this process makes cgroups, if it can't elsewhere. "" means the root of the tree.
	Top string
}

// Detect inspects a mount point, usually /sys/fs/cgroup ("" means that), and returns the tree that
// has the device rules.
func Detect(mount string) (Hierarchy, error) {
	mount = cmp.Or(mount, "/sys/fs/cgroup")
	if fsType(mount) == unix.CGROUP2_SUPER_MAGIC {
		return Hierarchy{Version: V2, Root: mount, Mount: mount}, nil
	}
	devices := filepath.Join(mount, "devices")
	if fsType(devices) != unix.CGROUP_SUPER_MAGIC {
		return Hierarchy{}, fmt.Errorf("%w at %s: neither cgroup v2 nor the devices hierarchy of v1", ErrNone, mount)
	}
	hybrid := fsType(filepath.Join(mount, "unified")) == unix.CGROUP2_SUPER_MAGIC
	return Hierarchy{Version: V1, Root: devices, Mount: mount, Controller: "devices", Hybrid: hybrid}, nil
}

// CrunWorks reports whether all supported versions of crun work on this machine. crun refuses a hybrid of cgroup v1
// and v2. Before 1.9 it raises the memlock limit to load device rules on v2, which needs CAP_SYS_RESOURCE.
func (h Hierarchy) CrunWorks(mayLiftMemlock bool) bool {
	return !h.Hybrid && (h.Version == V1 || mayLiftMemlock)
}

// fsType returns the magic number of the file system at path, 0 if there is none.
func fsType(path string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0
	}
	return st.Type
}

// Controllers lists the controllers that the machine has, or that Top may hand on, sorted. On version 1 these
// are the names of the trees; one that is mounted as "cpu,cpuacct" counts for both.
func (h Hierarchy) Controllers() ([]string, error) {
	var names []string
	if h.Version == V2 {
		data, err := h.readControl(cmp.Or(h.Top, "/"), "cgroup.controllers")
		if err != nil {
			return nil, fmt.Errorf("read cgroup controllers: %w", err)
		}
		names = strings.Fields(string(data))
	} else {
		entries, err := os.ReadDir(h.Mount)
		if err != nil {
			return nil, fmt.Errorf("list cgroup trees: %w", err)
		}
		for _, e := range entries {
			names = append(names, strings.Split(e.Name(), ",")...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// HasController reports whether the machine has the controller ("memory", "cpu", …).
func (h Hierarchy) HasController(controller string) bool {
	names, err := h.Controllers()
	return err == nil && slices.Contains(names, controller)
}

// controllerDir returns the directory of the cgroup at path in the tree of a controller. It need
// not exist.
func (h Hierarchy) controllerDir(controller, path string) string {
	if h.Version == V2 {
		return filepath.Join(h.Root, path)
	}
	tree := filepath.Join(h.Mount, controller)
	if _, err := os.Stat(tree); err == nil {
		return filepath.Join(tree, path)
	}
	entries, err := os.ReadDir(h.Mount)
	if err != nil {
		return filepath.Join(tree, path)
	}
	for _, e := range entries { // trees with several controllers needn't have links
		if slices.Contains(strings.Split(e.Name(), ","), controller) {
			return filepath.Join(h.Mount, e.Name(), path)
		}
	}
	return filepath.Join(tree, path)
}

// ListTrees returns all cgroup trees that are mounted with this one, itself among them:
// a runtime creates a container's cgroup in each. On version 2 it is the only one. A
// tree that has two names ("cpu" and "cpu,cpuacct") is listed once; Controller is
// the name of its directory.
func (h Hierarchy) ListTrees() ([]Hierarchy, error) {
	if h.Version == V2 {
		return []Hierarchy{h}, nil
	}
	entries, err := os.ReadDir(h.Mount)
	if err != nil {
		return nil, fmt.Errorf("list cgroup trees: %w", err)
	}
	seen := map[uint64]bool{}
	var all []Hierarchy
	for _, e := range entries {
		t := h
		t.Root, t.Controller = filepath.Join(h.Mount, e.Name()), e.Name()
		var st unix.Stat_t
		if unix.Stat(t.Root, &st) != nil || seen[st.Dev] {
			continue
		}
		switch fsType(t.Root) {
		case unix.CGROUP2_SUPER_MAGIC:
			t.Version, t.Controller, t.Hybrid = V2, "", false
		case unix.CGROUP_SUPER_MAGIC:
		default:
			continue
		}
		seen[st.Dev] = true
		all = append(all, t)
	}
	return all, nil
}

// Dir returns the directory of the cgroup at path. A path that isn't absolute or that has an
// element ".." is ErrPath: such a path is either hostile or was made in another cgroup namespace.
func (h Hierarchy) Dir(path string) (string, error) {
	clean, err := cleanPath(path)
	if err != nil {
		return "", err
	}
	return filepath.Join(h.Root, clean), nil
}

// PathOf is the inverse of Dir: it turns a directory below the mount point, as
// runtimes write them into their state, into a cgroup path.
func (h Hierarchy) PathOf(dir string) (string, bool) {
	rest, ok := strings.CutPrefix(filepath.Clean(dir), filepath.Clean(h.Root))
	if !ok || (rest != "" && rest[0] != '/') {
		return "", false
	}
	path, err := cleanPath("/" + rest)
	return path, err == nil
}

// IsWithin reports whether path is top or below it.
func IsWithin(path, top string) bool {
	return path == top || strings.HasPrefix(path, strings.TrimSuffix(top, "/")+"/")
}

func cleanPath(path string) (string, error) {
	bad := !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "\x00\n") ||
		slices.Contains(strings.Split(path, "/"), "..")
	if bad {
		return "", fmt.Errorf("%w: %q", ErrPath, path)
	}
	return filepath.Clean(path), nil
}

// maxFile bounds a control file. The largest ones have a line for each process.
const maxFile = 64 << 20

// readControl returns a control file of the cgroup at path.
func (h Hierarchy) readControl(path, file string) ([]byte, error) {
	dir, err := h.Dir(path)
	if err != nil {
		return nil, err
	}
	return smallfile.Read(filepath.Join(dir, file), maxFile)
}

// writeControl writes a control file that exists: unlike os.WriteFile it creates none.
func writeControl(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// IsGone reports whether the error means that the cgroup doesn't exist any more. A
// control file that was open when its cgroup was removed gives ENODEV.
func IsGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}
