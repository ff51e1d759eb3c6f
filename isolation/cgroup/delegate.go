package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// Limits on the cgroups that a user may make below a delegated one, and on how deep. A task has four.
const (
	maxDescendants = 1000
	maxDepth       = 16
)

// Delegate gives the cgroup at path, of version 2, to a user, who may then make cgroups below it, and move processes
// between it and them. The user can neither move processes into it from outside or out of it, nor change its own limits.
func (h Hierarchy) Delegate(path string, uid int) error {
	if h.Version != V2 {
		return fmt.Errorf("delegate cgroup %s: cgroup version 1 can't be delegated", path)
	}
	dir, err := h.Dir(path)
	if err != nil {
		return err
	}
	for file, limit := range map[string]int{"cgroup.max.descendants": maxDescendants, "cgroup.max.depth": maxDepth} {
		if err := writeControl(filepath.Join(dir, file), strconv.Itoa(limit)); err != nil {
			return fmt.Errorf("delegate cgroup %s: %w", path, err)
		}
	}
	for _, name := range delegatedFiles() {
		if err := os.Lchown(filepath.Join(dir, name), uid, -1); err != nil {
			return fmt.Errorf("delegate cgroup %s: %w", path, err)
		}
	}
	return nil
}

// TakeBack undoes [Hierarchy.Delegate]: the user can't make cgroups at any depth below the one at path any more. Processes can still be
// moved between those that the user has made. A cgroup that doesn't exist, or that this process may not change, is no error.
func (h Hierarchy) TakeBack(path string) error {
	if h.Version != V2 {
		return nil
	}
	dir, err := h.Dir(path)
	if err != nil {
		return err
	}
	err = writeControl(filepath.Join(dir, "cgroup.max.descendants"), "0")
	for _, name := range delegatedFiles() {
		if err == nil {
			err = os.Lchown(filepath.Join(dir, name), 0, -1)
		}
	}
	if errors.Is(err, fs.ErrPermission) || IsGone(err) {
		return nil
	}
	return err
}

// delegatedFiles are what belongs to the user of a delegated cgroup, and "" the directory itself. Source: the kernel's
// Documentation/admin-guide/cgroup-v2.rst, "Delegation".
func delegatedFiles() []string {
	return []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"}
}
