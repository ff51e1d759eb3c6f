package spec

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/launcher/rootfs"
)

// procDirError refuses a working directory in procfs. A runtime enters the directory while it has files
// of the host open, which links of procfs lead to.
type procDirError struct{ dir string }

func (e procDirError) Error() string {
	return fmt.Sprintf("working directory %s lies in /proc, whose links lead out of containers; choose another", e.dir)
}

// MakeWorkdir creates a container's working directory in its root. A directory in /proc is an error.
func MakeWorkdir(root *os.File, dir string) error {
	if err := checkKernelDir(dir); err != nil {
		return err
	}
	if isBelow(path.Clean(dir), "/proc") {
		return procDirError{dir}
	}
	if err := rootfs.MkdirAll(root, dir); err != nil {
		return err
	}
	return rejectLinkToProc(root, dir)
}

// rejectLinkToProc returns an error if the working directory is a link of the image into the root's
// /proc, where procfs isn't mounted yet.
func rejectLinkToProc(root *os.File, dir string) error {
	if dir == "/" {
		return nil
	}
	d, err := inroot.Open(root, dir, unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("working directory %s: %w", dir, err)
	}
	defer d.Close() // an O_PATH descriptor
	at, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(d.Fd())))
	if err != nil {
		return err
	}
	top, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(root.Fd())))
	if err != nil {
		return err
	}
	if inside, ok := strings.CutPrefix(at, top); ok && isBelow(inside, "/proc") {
		return procDirError{dir}
	}
	return nil
}

// RejectProcfs returns an error if d, a directory of a running container, is in procfs.
func RejectProcfs(d *os.File, dir string) error {
	var where unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &where); err != nil {
		return fmt.Errorf("working directory %s in the container: %w", dir, err)
	}
	if where.Type == unix.PROC_SUPER_MAGIC {
		return procDirError{dir}
	}
	return nil
}
