package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
)

// Errors of FindCommand, told apart because a shell does (127 and 126).
var (
	ErrNotFound   = errors.New("command not found")
	ErrCantInvoke = errors.New("command can't be executed")
)

// MissingInterpreter is a program that is there and can't be started, for the kernel
// starts it with another that isn't: a script's shell, or the dynamic loader.
type MissingInterpreter struct{ Program, Interpreter string }

func (e *MissingInterpreter) Error() string {
	return fmt.Sprintf("%v: %s needs %s, which isn't in the image", ErrNotFound, e.Program, e.Interpreter)
}

// Is says that nothing was found, as a shell does.
func (e *MissingInterpreter) Is(target error) bool { return target == ErrNotFound }

// Search says where FindCommand looks.
type Search struct {
	Path string // the container's PATH
	Dir  string // its working directory, absolute
	// Mounts will be made in the root; later ones cover earlier ones.
	Mounts []Mount
	// Programs are single files that will be mounted as well: the path in the
	// container, and where the file is on the host.
	Programs map[string]string
}

// FindCommand reports whether a command could be executed in the root. It returns
// ErrNotFound or ErrCantInvoke. What it can't read it leaves to the kernel, and
// returns nil.
func FindCommand(root *os.File, name string, s Search) error {
	if name == "" {
		return fmt.Errorf("%w: the name is empty", ErrNotFound)
	}
	f := finder{Search: s, view: newView(root, s.Mounts)}
	if strings.Contains(name, "/") {
		return f.checkProgram(name)
	}
	var denied error
	for _, dir := range strings.Split(s.Path, ":") {
		err := f.checkProgram(path.Join(dir, name))
		if err == nil {
			return nil
		}
		var missing *MissingInterpreter
		if errors.As(err, &missing) {
			return err // the runtime looks for the first that is there
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

// finder is one call of FindCommand.
type finder struct {
	Search
	view view
}

func (s finder) checkProgram(at string) error {
	at = s.makeAbsolute(at)
	f, err := s.openPath(at)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("%w: there is no %s in the image", ErrNotFound, at)
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrCantInvoke, at, err)
	}
	defer f.Close() // an O_PATH descriptor
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
	return s.checkInterpreter(f, at, maxScripts)
}

// openPath finds what the container will find at an absolute path, with O_PATH.
func (s finder) openPath(at string) (*os.File, error) {
	if source, ok := s.Programs[path.Clean(at)]; ok {
		return openHost(source)
	}
	return s.view.openPath(at)
}

// maxScripts is how many scripts, each the interpreter of the one before, the kernel
// goes through.
const maxScripts = 5

// checkInterpreter looks for the program that the kernel would start f with. A missing one
// is the usual reason of "no such file" for a file that is there.
func (s finder) checkInterpreter(f *os.File, at string, scripts int) error {
	r, err := inroot.Reopen(f)
	if err != nil {
		return nil //nolint:nilerr // an interpreter that the kernel won't like, or one that the container's user may read and we can't
	}
	defer r.Close() // only read from
	p := inspectProgram(r)
	if p.foreign {
		return fmt.Errorf("%w: %s is for another processor", ErrCantInvoke, at)
	}
	if p.interpreter == "" {
		return nil
	}
	i, err := s.openPath(s.makeAbsolute(p.interpreter))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return &MissingInterpreter{Program: at, Interpreter: p.interpreter}
	}
	if err != nil {
		return nil // the kernel says why
	}
	defer i.Close() // an O_PATH descriptor
	if !p.script || scripts == 0 {
		return nil
	}
	return s.checkInterpreter(i, p.interpreter, scripts-1)
}

func (s finder) makeAbsolute(name string) string {
	if path.IsAbs(name) {
		return name
	}
	return path.Join("/", s.Dir, name)
}
