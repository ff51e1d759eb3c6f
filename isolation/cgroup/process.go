package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// ProcessPath returns the cgroup of a process, read from procfs mounted at proc. The
// error Is fs.ErrNotExist if there is no such process, and ErrPath if its cgroup
// is outside of what this process's cgroup namespace can see.
func (h Hierarchy) ProcessPath(proc string, pid int) (string, error) {
	b, err := smallfile.Read(filepath.Join(proc, strconv.Itoa(pid), "cgroup"), maxFile)
	if errors.Is(err, unix.ESRCH) { // the process ended after the file was opened
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
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

// Populated reports whether a process that isn't a zombie is in the cgroup or below it. It is false
// for a missing cgroup. On version 1 it walks the tree and isn't atomic: a process that moves
// between two children meanwhile can be missed.
func (h Hierarchy) Populated(path string) (bool, error) {
	if h.Version == V2 && path != "/" { // the root has no cgroup.events
		b, err := h.readControl(path, "cgroup.events")
		if IsGone(err) {
			return false, nil
		}
		return bytes.Contains(b, []byte("populated 1\n")), err
	}
	found := false
	err := h.walkCgroups(path, func(m member) error {
		if found {
			return nil
		}
		pids, err := m.listProcesses()
		found = len(pids) > 0
		return err
	})
	return found, err
}

// PIDs lists the processes in the cgroup and below it, sorted. Processes that are invisible in this
// pid namespace, and those that are being reaped, are left out: the kernel lists them as 0, and
// kill(2) with pid 0 would signal the caller's own process group.
func (h Hierarchy) PIDs(path string) ([]int, error) {
	var all []int
	err := h.walkCgroups(path, func(m member) error {
		pids, err := m.listProcesses()
		all = append(all, pids...)
		return err
	})
	all = slices.DeleteFunc(all, func(pid int) bool { return pid == 0 })
	slices.Sort(all)
	return slices.Compact(all), err
}
