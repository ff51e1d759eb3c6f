package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// hierarchies are the directories in which a cgroup can be: one, or one for each of v1.
func (t Tree) hierarchies() ([]string, error) {
	if t.Unified {
		return []string{t.root}, nil
	}
	entries, err := os.ReadDir(t.root)
	if err != nil {
		return nil, fmt.Errorf("read cgroup hierarchies: %w", err)
	}
	var dirs []string
	for _, e := range entries {
		if dir := filepath.Join(t.root, e.Name()); isCgroup(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// Enter moves the calling process into the cgroup at path, which is made where it isn't:
// out of the session or the service that it was started from, so that their end isn't
// its own. On v1 a hierarchy that doesn't take it is passed over. It can take some
// milliseconds.
func (t Tree) Enter(path string) error {
	dirs, err := t.hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, enterAt(filepath.Join(dir, path)))
	}
	if !t.Unified && len(dirs) > 0 {
		return nil
	}
	return errors.Join(errs...)
}

func enterAt(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	if err := writeTo(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(os.Getpid())); err != nil {
		return fmt.Errorf("enter cgroup: %w", err)
	}
	return nil
}

// OOMKilled says whether the kernel has killed a process of the cgroup at path, or below
// it, for want of memory. It is false where that isn't known.
func (t Tree) OOMKilled(path string) bool {
	file := filepath.Join(t.root, path, "memory.events")
	if !t.Unified {
		file = filepath.Join(t.root, "memory", path, "memory.oom_control")
	}
	data, err := os.ReadFile(file)
	return err == nil && oomKilled(data)
}

// oomKilled reads the count of "oom_kill": v2 and v1 (since Linux 4.13) both have it.
func oomKilled(events []byte) bool {
	for line := range bytes.Lines(events) {
		name, count, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		if name == "oom_kill" {
			return count != "0"
		}
	}
	return false
}
