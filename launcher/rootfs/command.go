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
	at = s.absolute(at)
	if s.hidden(at) {
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
	return s.runs(root, f, at)
}

// runs looks for the program that the kernel would start f with. A missing one
// is the usual reason of "no such file" for a file that is there.
func (s Search) runs(root, f *os.File, at string) error {
	r, err := os.Open(selfFD(f))
	if err != nil {
		return nil // the container's user may read what we can't
	}
	defer r.Close()
	p := inspect(r)
	if p.foreign {
		return fmt.Errorf("%w: %s is for another processor", ErrCantInvoke, at)
	}
	if p.interpreter == "" {
		return nil
	}
	needs := s.absolute(p.interpreter)
	if s.hidden(needs) {
		return nil
	}
	i, err := resolve(root, needs, unix.O_PATH)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s needs %s, which isn't in the image", ErrNotFound, at, p.interpreter)
	}
	if err == nil {
		i.Close() // O_PATH
	}
	return nil
}

func (s Search) absolute(name string) string {
	if path.IsAbs(name) {
		return name
	}
	return path.Join("/", s.Dir, name)
}

func (s Search) hidden(name string) bool { return s.Covered != nil && s.Covered(path.Clean(name)) }
