// Package cgroup keeps the cgroups that launched tasks live in: /berth/ID with
// the leaf "runtime", in which the OCI runtime is started, and the container's
// own cgroup beside it, which the runtime makes and removes.
//
// The runtime is inside from its first instruction. So a task is never between
// two proofs of life: when the launcher is killed, /berth/ID is populated until
// the last process of runtime and container has gone.
//
// Limits and device rules are the runtime's business; nothing here writes them.
// On cgroup v1 the runtime's leaf exists in the devices hierarchy alone.
package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Tree is a mounted cgroup file system, or the set of v1 hierarchies.
type Tree struct {
	root string
	// Unified: cgroup v2 alone. Hybrid: v1 hierarchies with a v2 one beside them.
	Unified, Hybrid bool
}

// Detect looks at what is mounted at root ("" means /sys/fs/cgroup).
func Detect(root string) (Tree, error) {
	if root == "" {
		root = "/sys/fs/cgroup"
	}
	if isUnified(root) {
		return Tree{root: root, Unified: true}, nil
	}
	if _, err := os.Stat(filepath.Join(root, "devices", "tasks")); err != nil {
		return Tree{}, fmt.Errorf("no cgroup file system at %s: neither cgroup v2 nor the devices hierarchy of v1", root)
	}
	return Tree{root: root, Hybrid: isUnified(filepath.Join(root, "unified"))}, nil
}

func isUnified(dir string) bool { return magic(dir) == unix.CGROUP2_SUPER_MAGIC }

func isCgroup(dir string) bool { return magic(dir) == unix.CGROUP_SUPER_MAGIC || isUnified(dir) }

func magic(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return st.Type
}

// Controllers lists what the tree can limit, sorted.
func (t Tree) Controllers() ([]string, error) {
	if t.Unified {
		data, err := os.ReadFile(filepath.Join(t.root, "cgroup.controllers"))
		if err != nil {
			return nil, fmt.Errorf("read cgroup controllers: %w", err)
		}
		names := strings.Fields(string(data))
		slices.Sort(names)
		return names, nil
	}
	entries, err := os.ReadDir(t.root)
	if err != nil {
		return nil, fmt.Errorf("read cgroup hierarchies: %w", err)
	}
	var names []string
	for _, e := range entries {
		// Joint hierarchies are mounted as "cpu,cpuacct", with links or without.
		names = append(names, strings.Split(e.Name(), ",")...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Has says whether the tree has the controller.
func (t Tree) Has(controller string) bool {
	names, err := t.Controllers()
	return err == nil && slices.Contains(names, controller)
}

// runtimeLeaf is the child in which the OCI runtime runs.
const runtimeLeaf = "runtime"

// Make makes /berth/ID for a task and the runtime's leaf in it.
//
// On v2 it also hands the controllers down, while nothing lives there. Otherwise
// the runtime does so from inside, and the kernel, which then has to move the
// runtime's process, waits for an RCU grace period: 10 ms.
func (t Tree) Make(path string) error {
	err := t.makeLeaf(path)
	// Another task's end may remove a parent in between; while the kernel takes it
	// away, its name is still taken and yet leads nowhere.
	for range 1000 {
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENODEV) {
			break
		}
		time.Sleep(time.Millisecond)
		err = t.makeLeaf(path)
	}
	if err != nil {
		return fmt.Errorf("make cgroup %s: %w", path, err)
	}
	return nil
}

func (t Tree) makeLeaf(path string) error {
	if t.Unified {
		if err := os.MkdirAll(filepath.Join(t.root, path), 0o755); err != nil {
			return err
		}
		t.handDown(path)
	}
	return os.MkdirAll(t.leaf(path), 0o755)
}

// handDown gives the children of the cgroup at path every controller that the
// tree has. Where it can't, the runtime tries again and is the one to say why.
func (t Tree) handDown(path string) {
	names, err := t.Controllers()
	if err != nil || len(names) == 0 {
		return
	}
	t.give(filepath.Clean("/"+path), "+"+strings.Join(names, " +"))
}

// give gives the children of the cgroup at path what it has, or gets from those above: they
// mostly have given before, and the kernel lets one process at a time change cgroups.
func (t Tree) give(path, all string) bool {
	file := filepath.Join(t.root, path, "cgroup.subtree_control")
	if writeTo(file, all) == nil {
		return true
	}
	return path != "/" && t.give(filepath.Dir(path), all) && writeTo(file, all) == nil
}

// Populated says whether a process is in the cgroup at path or below it. One
// that doesn't exist is not populated.
func (t Tree) Populated(path string) (bool, error) {
	if t.Unified {
		data, err := os.ReadFile(filepath.Join(t.root, path, "cgroup.events"))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return bytes.Contains(data, []byte("populated 1")), err
	}
	populated := false
	err := filepath.WalkDir(filepath.Join(t.root, "devices", path), func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.IsDir() {
			return err
		}
		procs, err := os.ReadFile(filepath.Join(p, "tasks"))
		if len(procs) > 0 {
			populated = true
			return fs.SkipAll
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		return err
	})
	return populated, err
}

// Remove removes the cgroup at path with all below it, in every hierarchy. It
// waits a moment for processes that are ending; it kills none.
func (t Tree) Remove(path string) error {
	dirs, err := t.hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, removeTree(filepath.Join(dir, path)))
	}
	return errors.Join(errs...)
}

// removeTree gives processes that are being reaped two seconds.
func removeTree(dir string) error {
	var err error
	for wait := time.Millisecond; wait < time.Second; wait *= 2 {
		if err = removeOnce(dir); !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(wait)
	}
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}

func removeOnce(dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	entries, readErr := os.ReadDir(dir)
	if readErr != nil {
		return ignoreGone(readErr)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeOnce(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// leaf is the directory of the runtime's cgroup below the one at path.
func (t Tree) leaf(path string) string {
	if t.Unified {
		return filepath.Join(t.root, path, runtimeLeaf)
	}
	return filepath.Join(t.root, "devices", path, runtimeLeaf)
}
