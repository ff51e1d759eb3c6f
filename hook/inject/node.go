package inject

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/mounttree"
)

// makeNode creates a device node. It replaces what the image or the user has put in its
// place, and never follows it. A directory there, or a mount of something else, is an
// error. In a directory of the host's file systems it creates nothing: the node has to
// exist there.
func (s *openContainer) makeNode(n edits.Node) error {
	dir, err := s.openDir(path.Dir(path.Clean(n.Path)))
	if err != nil {
		return err
	}
	defer dir.Close() // an O_PATH descriptor
	name := path.Base(path.Clean(n.Path))
	if s.pidfd < 0 && isNode(dir, name, n) { // the launcher has made or bound it
		return nil
	}
	if err := s.checkWritable(dir); err != nil {
		if isNode(dir, name, n) {
			return nil
		}
		return fmt.Errorf("%w, where berth creates nothing", err)
	}
	if isMountPoint(dir, name) {
		if isNode(dir, name, n) {
			return nil
		}
		return errors.New("something else is mounted there")
	}
	if s.userNS {
		return s.bindNode(dir, name, n)
	}
	err = mknod(dir, name, n)
	if errors.Is(err, unix.EPERM) {
		return s.bindNode(dir, name, n)
	}
	return err
}

func mknod(dir *os.File, name string, n edits.Node) error {
	if err := removeName(dir, name); err != nil {
		return err
	}
	mode, kind := n.Mode&0o777, uint32(unix.S_IFCHR)
	if n.Mode == 0 {
		mode = 0o666
	}
	if n.Type == "b" {
		kind = unix.S_IFBLK
	}
	if err := unix.Mknodat(int(dir.Fd()), name, kind|mode, int(unix.Mkdev(uint32(n.Major), uint32(n.Minor)))); err != nil {
		return &fs.PathError{Op: "mknod", Path: name + " in " + dir.Name(), Err: err}
	}
	return unix.Fchownat(int(dir.Fd()), name, int(n.UID), int(n.GID), unix.AT_SYMLINK_NOFOLLOW)
}

func removeName(dir *os.File, name string) error {
	err := unix.Unlinkat(int(dir.Fd()), name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return &fs.PathError{Op: "replace", Path: name + " in " + dir.Name(), Err: err}
}

// bindNode binds the host's node: a node that was created in a user namespace cannot be
// opened.
func (s *openContainer) bindNode(dir *os.File, name string, n edits.Node) error {
	host := filepath.Join(s.Dev, strings.TrimPrefix(path.Clean(n.Path), "/dev/"))
	tree, err := runOutside(func() (*os.File, error) { return mounttree.Clone(host, false) })
	if err != nil {
		return err
	}
	defer tree.Close() // attached by then, or of no use
	var st unix.Stat_t
	if err := unix.Fstat(int(tree.Fd()), &st); err != nil || !hasNumber(st, n) {
		return errors.Join(fmt.Errorf("%s isn't device %d:%d", host, n.Major, n.Minor), err)
	}
	if err := removeName(dir, name); err != nil {
		return err
	}
	if err := s.createFile(dir, name); err != nil {
		return err
	}
	at, err := inroot.Open(dir, name, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer at.Close() // an O_PATH descriptor
	return mounttree.Attach(tree, at)
}

// isNode reports whether exactly this device is there already.
func isNode(dir *os.File, name string, n edits.Node) bool {
	f, err := inroot.Open(dir, name, unix.O_NOFOLLOW)
	if err != nil {
		return false
	}
	defer f.Close() // an O_PATH descriptor
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && hasNumber(st, n)
}

func hasNumber(st unix.Stat_t, n edits.Node) bool {
	kind := uint32(unix.S_IFCHR)
	if n.Type == "b" {
		kind = unix.S_IFBLK
	}
	return st.Mode&unix.S_IFMT == kind && int64(unix.Major(st.Rdev)) == n.Major && int64(unix.Minor(st.Rdev)) == n.Minor
}

// isMountPoint reports whether the name is a mount of its own.
func isMountPoint(dir *os.File, name string) bool {
	f, err := inroot.Open(dir, name, unix.O_NOFOLLOW)
	if err != nil {
		return false
	}
	defer f.Close() // an O_PATH descriptor
	_, isRoot, err := mountOfFile(f)
	return err == nil && isRoot
}

// removeNode removes a node that the runtime has created. In a directory of the host's
// file systems it stays, closed by the device rules.
func (s *openContainer) removeNode(name string) error {
	dir, err := inroot.Open(s.root, path.Dir(path.Clean(name)), unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close() // an O_PATH descriptor
	f, err := inroot.Open(dir, path.Base(name), unix.O_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) || s.checkWritable(dir) != nil {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() // an O_PATH descriptor
	st, err := f.Stat()
	switch {
	case err != nil:
		return err
	case st.Mode()&fs.ModeDevice == 0:
		return nil
	case isMountPoint(dir, path.Base(name)):
		return detachMount(f)
	}
	return removeName(dir, path.Base(name))
}
