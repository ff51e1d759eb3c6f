package cgroup

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Trees are all cgroup trees that are mounted with this one, itself among them: a
// runtime makes a container's cgroup in each. On version 2 it is the only one. A
// tree that has two names ("cpu" and "cpu,cpuacct") is listed once; Controller is
// the name of its directory.
func (h Hierarchy) Trees() ([]Hierarchy, error) {
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
		var fs unix.Statfs_t
		var st unix.Stat_t
		if unix.Statfs(t.Root, &fs) != nil || unix.Stat(t.Root, &st) != nil || seen[st.Dev] {
			continue
		}
		switch fs.Type {
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
