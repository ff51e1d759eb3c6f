package cgroup

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// ProcessPath returns the cgroup of a process, read from procfs mounted at proc. The
// error Is fs.ErrNotExist if there is no such process, and ErrPath if its cgroup
// is outside of what this process's cgroup namespace can see.
func (h Hierarchy) ProcessPath(proc string, pid int) (string, error) {
	b, err := smallfile.Read(filepath.Join(proc, strconv.Itoa(pid), "cgroup"), maxFile)
	if err != nil {
		return "", err
	}
	path, err := h.parseMembership(b)
	if err != nil {
		return "", fmt.Errorf("cgroup of process %d: %w", pid, err)
	}
	return path, nil
}

// parseMembership picks this hierarchy's line, "ID:CONTROLLERS:PATH", from /proc/PID/cgroup.
// The kernel marks the path of a removed cgroup, in which a zombie can still be.
func (h Hierarchy) parseMembership(b []byte) (string, error) {
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 || !h.isListed(f[0], f[1]) {
			continue
		}
		return cleanPath(strings.TrimSuffix(f[2], " (deleted)"))
	}
	return "", fmt.Errorf("no line for %s: %w", h.Root, ErrNone)
}

func (h Hierarchy) isListed(id, controllers string) bool {
	if h.Version == V2 {
		return id == "0" && controllers == ""
	}
	return slices.Contains(strings.Split(controllers, ","), h.Controller)
}

// Exists says whether there is a cgroup at path.
func (h Hierarchy) Exists(path string) (bool, error) {
	_, err := h.readControl(path, "cgroup.procs")
	if isGone(err) {
		return false, nil
	}
	return err == nil || isThreaded(err), unlessThreaded(err)
}

// Populated says whether any process lives in the cgroup or below it. A zombie
// doesn't live, and neither does a cgroup that doesn't exist. On version 1 the
// answer comes from a walk, and isn't atomic: a process that moves between two
// children meanwhile can be missed.
func (h Hierarchy) Populated(path string) (bool, error) {
	if h.Version == V2 && path != "/" { // the root has no cgroup.events
		b, err := h.readControl(path, "cgroup.events")
		if isGone(err) {
			return false, nil
		}
		return bytes.Contains(b, []byte("populated 1\n")), err
	}
	found := false
	err := h.walkCgroups(path, func(dir string) error {
		if found {
			return nil
		}
		pids, err := readProcs(dir)
		found = len(pids) > 0
		return err
	})
	return found, err
}

// FrozenPath returns the cgroup that a process is frozen in, on version 1 in the tree of the
// freezer controller; "" if it isn't frozen, or if that can't be read.
func (h Hierarchy) FrozenPath(proc string, pid int) string {
	file, mark := "cgroup.events", "frozen 1"
	if h.Version == V1 {
		trees, err := h.ListTrees()
		i := slices.IndexFunc(trees, func(t Hierarchy) bool { return t.Controller == "freezer" })
		if err != nil || i < 0 {
			return ""
		}
		h, file, mark = trees[i], "freezer.state", "FROZEN"
	}
	path, err := h.ProcessPath(proc, pid)
	if err != nil {
		return ""
	}
	text, err := h.readControl(path, file)
	if err != nil || !slices.Contains(strings.Split(string(text), "\n"), mark) {
		return ""
	}
	return path
}

// PIDs lists the processes in the cgroup and below it, sorted. Those that can't be
// seen from this pid namespace, and those that are just being buried, are left
// out: the kernel lists them as 0, which for kill(2) means the caller's own group.
func (h Hierarchy) PIDs(path string) ([]int, error) {
	var all []int
	err := h.walkCgroups(path, func(dir string) error {
		pids, err := readProcs(dir)
		all = append(all, pids...)
		return err
	})
	all = slices.DeleteFunc(all, func(pid int) bool { return pid == 0 })
	slices.Sort(all)
	return slices.Compact(all), err
}

// walkCgroups calls f for the directory of the cgroup at path and of each below it,
// children first. Cgroups that go away meanwhile are left out.
func (h Hierarchy) walkCgroups(path string, f func(dir string) error) error {
	dir, err := h.Dir(path)
	if err != nil {
		return err
	}
	return walkDirectory(dir, f)
}

func walkDirectory(dir string, f func(dir string) error) error {
	entries, err := os.ReadDir(dir)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := walkDirectory(filepath.Join(dir, e.Name()), f); err != nil {
			return err
		}
	}
	return f(dir)
}

// readProcs reads the processes that are in just this cgroup.
func readProcs(dir string) ([]int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if isGone(err) || isThreaded(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, w := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(w)
		if err != nil {
			return nil, fmt.Errorf("read processes of %s: %w", dir, err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}
