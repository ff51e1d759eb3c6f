package enter

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/userns"
)

// makeForeignDirectories makes directories in upper for those of an image directory that belong to another user, so that files and mount points can be
// created in them: in the overlay file system of both, such a directory has the image's files and belongs to this user. It does so for the
// directories in which the paths would be created. Root of the machine needs none.
//
// The image may be changed by its owner meanwhile: upper then has directories that the image hasn't.
func makeForeignDirectories(image string, upper *os.File, paths []string) error {
	if os.Geteuid() == 0 && !userns.IsInside() {
		return nil
	}
	root, err := inroot.OpenRoot(image)
	if err != nil {
		return err
	}
	defer root.Close() // an O_PATH descriptor
	for _, name := range paths {
		for dir := path.Dir(path.Clean("/" + name)); dir != "/"; dir = path.Dir(dir) {
			err := makeForeignDirectory(root, upper, dir)
			if err == nil {
				break
			}
			if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
				return err
			}
		}
	}
	return nil
}

// makeForeignDirectory makes one of an image's directories in upper, unless it belongs to this user.
func makeForeignDirectory(image, upper *os.File, dir string) error {
	at, err := inroot.Open(image, dir, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer at.Close() // an O_PATH descriptor
	var st unix.Stat_t
	if err := unix.Fstat(int(at.Fd()), &st); err != nil || int(st.Uid) == os.Geteuid() {
		return err
	}
	top, err := os.Readlink(procPath(image))
	if err != nil {
		return err
	}
	real, err := os.Readlink(procPath(at)) // without links
	if err != nil {
		return err
	}
	to := upper
	for name := range strings.SplitSeq(strings.Trim(strings.TrimPrefix(real, top), "/"), "/") {
		next, err := inroot.MakeDir(to, name, os.FileMode(st.Mode).Perm()|0o700)
		if to != upper {
			to.Close() // an O_PATH descriptor
		}
		if err != nil {
			return err
		}
		to = next
	}
	return to.Close()
}
