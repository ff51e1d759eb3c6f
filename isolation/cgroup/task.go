package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// runtimeLeaf is the child of a task's cgroup in which the OCI runtime runs.
const runtimeLeaf = "runtime"

// CreateTask creates the cgroup of a task at path and, below it, the one of its OCI
// runtime. It is idempotent. On version 1 both exist in the devices tree alone.
//
// On version 2 it also enables the controllers for the children, while no process is
// there. Otherwise the runtime does that from inside, and the kernel, which then has to
// move the runtime's process, waits for an RCU grace period: 10 ms.
func (h Hierarchy) CreateTask(path string) error {
	if h.Version == V2 {
		if err := h.Create(path); err != nil {
			return err
		}
		h.EnableControllers(path) // where that fails, the runtime tries again and reports the error
	}
	return h.Create(path + "/" + runtimeLeaf)
}

// EnableControllers enables every controller of the machine for the children of the
// cgroup at path, of version 2, if it and its parents allow that.
func (h Hierarchy) EnableControllers(path string) {
	names, err := h.Controllers()
	if err == nil && len(names) > 0 {
		h.enableFromTop(filepath.Clean("/"+path), "+"+strings.Join(names, " +"))
	}
}

// HandOnControllers enables the controllers that the cgroup at path, of version 2, has for its children too. Unlike
// [Hierarchy.EnableControllers] it leaves the parents as they are, which may be those of systemd.
func (h Hierarchy) HandOnControllers(path string) {
	h.Top = path
	names, err := h.Controllers()
	if dir, dirErr := h.Dir(path); err == nil && dirErr == nil && len(names) > 0 {
		_ = writeControl(filepath.Join(dir, "cgroup.subtree_control"), "+"+strings.Join(names, " +")) // a task that needs one names it
	}
}

// enableFromTop tries the cgroup itself before its parents. The parents usually have the controllers
// enabled, and the kernel serializes all changes of cgroups.
func (h Hierarchy) enableFromTop(path, names string) bool {
	file := filepath.Join(h.Root, path, "cgroup.subtree_control")
	if writeControl(file, names) == nil {
		return true
	}
	return path != "/" && h.enableFromTop(filepath.Dir(path), names) && writeControl(file, names) == nil
}

// StartRuntime starts cmd inside the runtime's cgroup of the task at path. The process
// is never outside of it. The caller must have locked its goroutine to its thread: on
// version 1 the thread itself moves there and back.
func (h Hierarchy) StartRuntime(cmd *exec.Cmd, path string) error {
	leaf := path + "/" + runtimeLeaf
	if h.Version == V2 {
		return h.startInside(cmd, leaf)
	}
	data, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return fmt.Errorf("read own cgroup: %w", err)
	}
	own, err := h.parseMembership(data)
	if err != nil {
		return fmt.Errorf("read own cgroup: %w", err)
	}
	if err := h.moveThread(leaf); err != nil {
		return err
	}
	return errors.Join(cmd.Start(), h.moveThread(own))
}

func (h Hierarchy) startInside(cmd *exec.Cmd, path string) error {
	dir, err := h.OpenDir(path)
	if err != nil {
		return fmt.Errorf("open cgroup: %w", err)
	}
	defer dir.Close()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD = true
	cmd.SysProcAttr.CgroupFD = int(dir.Fd())
	return cmd.Start()
}

// moveThread moves the calling thread. Unlike moving a process, a thread's move of
// itself takes no lock that waits for an RCU grace period.
func (h Hierarchy) moveThread(path string) error {
	dir, err := h.Dir(path)
	if err != nil {
		return err
	}
	if err := writeControl(filepath.Join(dir, "tasks"), "0"); err != nil {
		return fmt.Errorf("enter cgroup: %w", err)
	}
	return nil
}

// EnterAll moves the calling process into the cgroup at path in every tree, which is
// created where it is missing. The process thereby leaves the session or service that
// it was started from, and survives its end. On version 1 the trees that refuse the
// process are skipped. The move can take some milliseconds.
func (h Hierarchy) EnterAll(path string) error {
	trees, err := h.ListTrees()
	if err != nil {
		return err
	}
	for _, tree := range trees {
		if err = tree.Create(path); err == nil {
			err = tree.Join(path, os.Getpid())
		}
	}
	if h.Version == V1 && len(trees) > 0 {
		return nil
	}
	return err
}

// exitPatience is how long RemoveAll waits for processes that are exiting.
const exitPatience = time.Second

// RemoveAll removes the cgroup at path and those below it, in every tree. It waits up to
// a second for processes that are exiting, and kills none. It is idempotent.
func (h Hierarchy) RemoveAll(path string) error {
	trees, err := h.ListTrees()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), exitPatience)
	defer cancel()
	for _, tree := range trees {
		if e := tree.retryRemove(ctx, path, func() bool { return true }); e != nil {
			err = errors.Join(err, fmt.Errorf("remove cgroup %s: %w", path, e))
		}
	}
	return err
}
