package nodes

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
)

// Make makes the nodes that are missing or have other numbers, and their links, and returns the
// changes. It is idempotent and safe for concurrent use by several processes. It goes on after an
// error; all errors are in the one it returns.
func Make(h gpu.Host, wanted []Node) ([]Change, error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	dev, err := unix.Open(h.DevPath(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", h.DevPath(), err)
	}
	var changes []Change
	var errs []error
	for _, n := range wanted {
		for _, step := range []func(int, Node) (*Change, error){makeNode, makeLink} {
			c, err := step(dev, n)
			if err != nil {
				errs = append(errs, err)
				break
			}
			if c != nil {
				changes = append(changes, *c)
			}
		}
	}
	return changes, errors.Join(append(errs, unix.Close(dev))...)
}

// makeNode returns nil if the node exists already.
func makeNode(dev int, n Node) (*Change, error) {
	c := Change{Path: n.Path}
	err := inDirectory(dev, n.Path, func(dir int, name string) error {
		var st unix.Stat_t
		err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return err
		case st.Mode&unix.S_IFMT != unix.S_IFCHR:
			return errors.New("it exists and isn't a character device")
		case st.Rdev == n.deviceNumber():
			c.Path = ""
			return nil
		default:
			c.Was = fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
		}
		return replaceEntry(dir, name, func(temp string) error { return n.makeNode(dir, temp) })
	})
	if err != nil {
		return nil, fmt.Errorf("make device node %s: %w", n.Path, err)
	}
	return c.orNil(), nil
}

func (c Change) orNil() *Change {
	if c.Path == "" {
		return nil
	}
	return &c
}

func (n Node) deviceNumber() uint64 { return unix.Mkdev(n.Major, n.Minor) }

// makeNode makes the node as name, which must not exist. The mode is set again after mknod, because
// the umask restricts it; only root can write to the directory.
func (n Node) makeNode(dir int, name string) error {
	if err := unix.Mknodat(dir, name, unix.S_IFCHR|n.Mode, int(n.deviceNumber())); err != nil {
		return err
	}
	if err := unix.Fchownat(dir, name, n.UID, n.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.Fchmodat(dir, name, n.Mode, 0)
}

// makeLink returns nil if the link leads to the node already, whatever its text.
func makeLink(dev int, n Node) (*Change, error) {
	path, target := n.charLink()
	c := Change{Path: path}
	err := inDirectory(dev, path, func(dir int, name string) error {
		var st unix.Stat_t
		if unix.Fstatat(dir, name, &st, 0) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == n.deviceNumber() {
			c.Path = ""
			return nil
		}
		was, err := readLink(dir, name)
		switch {
		case errors.Is(err, unix.EINVAL):
			return errors.New("it exists and isn't a symbolic link")
		case err != nil && !errors.Is(err, unix.ENOENT):
			return err
		}
		c.Was = was
		return replaceEntry(dir, name, func(temp string) error { return unix.Symlinkat(target, dir, temp) })
	})
	if err != nil {
		return nil, fmt.Errorf("make link %s: %w", path, err)
	}
	return c.orNil(), nil
}

func readLink(dir int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// inDirectory calls f with the directory of a path below dev, and creates the directory if it is
// missing. Links aren't followed.
func inDirectory(dev int, path string, f func(dir int, name string) error) error {
	sub, name := splitPath(path)
	if sub == "" {
		return f(dev, name)
	}
	if err := unix.Mkdirat(dev, sub, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	dir, err := unix.Openat(dev, sub, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(f(dir, name), unix.Close(dir))
}

// replaceEntry calls make with a temporary name and renames the result to name, so that other
// processes see the old entry or the complete new one. The temporary name contains this process's
// pid; what an earlier process with this pid left under it is removed first.
func replaceEntry(dir int, name string, make func(temp string) error) error {
	temp := fmt.Sprintf(".berth-%s-%d", name, os.Getpid())
	if err := removeEntry(dir, temp); err != nil {
		return err
	}
	err := make(temp)
	if err == nil {
		err = unix.Renameat(dir, temp, dir, name)
	}
	if err != nil {
		return errors.Join(err, removeEntry(dir, temp))
	}
	return nil
}

func removeEntry(dir int, name string) error {
	if err := unix.Unlinkat(dir, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}
