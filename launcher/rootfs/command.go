package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Errors of FindCommand, told apart because a shell does (127 and 126).
var (
	ErrNotFound   = errors.New("command not found")
	ErrCantInvoke = errors.New("command can't be executed")
)

// Search says where FindCommand looks.
type Search struct {
	Path string // the container's PATH
	Dir  string // its working directory, absolute
	// Covered says that the path lies under a mount, so that what the root holds
	// there won't be seen. May be nil.
	Covered func(string) bool
}

// FindCommand says whether a command could be executed in the root. It returns
// ErrNotFound or ErrCantInvoke, and nil too when it can't know: when a mount
// covers a place where the command might be.
func FindCommand(root *os.File, name string, s Search) error {
	if name == "" {
		return fmt.Errorf("%w: the name is empty", ErrNotFound)
	}
	if strings.Contains(name, "/") {
		return s.check(root, name)
	}
	var denied error
	for _, dir := range strings.Split(s.Path, ":") {
		err := s.check(root, path.Join(dir, name))
		if err == nil {
			return nil
		}
		if errors.Is(err, ErrCantInvoke) && denied == nil {
			denied = err
		}
	}
	if denied != nil {
		return denied
	}
	return fmt.Errorf("%w: %q is nowhere in PATH (%s)", ErrNotFound, name, s.Path)
}

func (s Search) check(root *os.File, at string) error {
	if !path.IsAbs(at) {
		at = path.Join("/", s.Dir, at)
	}
	if s.Covered != nil && s.Covered(path.Clean(at)) {
		return nil
	}
	f, err := resolve(root, at, unix.O_PATH)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("%w: there is no %s in the image", ErrNotFound, at)
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrCantInvoke, at, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s: %w", ErrCantInvoke, at, err)
	case fi.IsDir():
		return fmt.Errorf("%w: %s is a directory", ErrCantInvoke, at)
	case !fi.Mode().IsRegular():
		return fmt.Errorf("%w: %s is not a regular file", ErrCantInvoke, at)
	case fi.Mode()&0o111 == 0:
		return fmt.Errorf("%w: %s has no execute permission", ErrCantInvoke, at)
	}
	return nil
}
