package rootfs

import (
	"io/fs"
	"os"
)

// FileType tells what is at a path of the container once the mounts are made; false if there
// is nothing, or it can't be looked at.
func FileType(root *os.File, mounts []Mount, at string) (fs.FileMode, bool) {
	f, err := newView(root, mounts).openPath(at)
	if err != nil {
		return 0, false
	}
	defer f.Close() // an O_PATH descriptor
	fi, err := f.Stat()
	if err != nil {
		return 0, false
	}
	return fi.Mode().Type(), true
}
