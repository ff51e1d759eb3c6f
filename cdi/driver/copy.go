package driver

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
)

// copyFile copies one file without setuid bits and owner. It doesn't sync; syncAll does that for all
// files.
func (s source) copyFile(root *os.File, to string) (err error) {
	in, err := inroot.OpenFile(root, s.from)
	if err != nil {
		return err
	}
	defer in.Close() // only read from
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := s.writeContent(out, in); err != nil {
		return fmt.Errorf("copy %s: %w", in.Name(), err)
	}
	return out.Chmod(s.fileMode())
}

func (s source) writeContent(out, in *os.File) error {
	if s.content != nil {
		_, err := out.Write(s.content)
		return err
	}
	return cloneContent(out, in)
}

// fileMode is what every user of a container needs: libraries are executable by custom.
func (s source) fileMode() fs.FileMode {
	if s.destinations != nil {
		return 0o644
	}
	return 0o755
}

// cloneContent shares the content where the file system can (btrfs, xfs), and copies it
// otherwise.
func cloneContent(out, in *os.File) error {
	if err := unix.IoctlFileClone(int(out.Fd()), int(in.Fd())); err == nil {
		return nil
	}
	_, err := io.Copy(out, in)
	return err
}

// makeDirectory makes a directory that containers can read, whatever the umask.
func makeDirectory(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chmod(path, 0o755)
}

// makeDirectories makes the directory at sub below parent, and those between.
func makeDirectories(parent, sub string) error {
	for elem := range strings.SplitSeq(sub, "/") {
		parent = filepath.Join(parent, elem)
		if err := makeDirectory(parent); err != nil {
			return err
		}
	}
	return nil
}

// syncAll waits until everything in the directory's file system is on the disk: one
// call for thousands of names is far cheaper than one for each.
func syncAll(dir string) error {
	return onDir(dir, func(d *os.File) error { return unix.Syncfs(int(d.Fd())) })
}

func syncDir(path string) error { return onDir(path, (*os.File).Sync) }

func onDir(path string, do func(d *os.File) error) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := errors.Join(do(d), d.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}
