package cgroup

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ID returns the kernel's id of the cgroup at path, which it never reuses before a reboot. The
// error Is ErrNotExist if there is no such cgroup.
func (h Hierarchy) ID(path string) (uint64, error) {
	dir, err := h.Dir(path)
	if err != nil {
		return 0, err
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if st.Ino == 0 {
		return 0, fmt.Errorf("cgroup %s has no id", path)
	}
	return st.Ino, nil
}
