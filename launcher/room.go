package launcher

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// leastRoom is what a disk must have left for a runtime to be started: what it writes to
// a task's directory is little, and it has no words for there being no room.
const leastRoom = 64 << 10

// checkRoom fails where a disk is full. Others may fill it a moment later.
func checkRoom(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if st.Blocks > 0 && st.Bfree*uint64(st.Bsize) < leastRoom { // no blocks: nobody counts them
		return &fs.PathError{Op: "write to", Path: dir, Err: unix.ENOSPC}
	}
	return nil
}
