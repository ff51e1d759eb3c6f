package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
)

// Errors of FindCommand. Shells distinguish them by exit codes 127 and 126.
var (
	ErrNotFound   = errors.New("command not found")
	ErrCantInvoke = errors.New("command can't be executed")
)

// MissingInterpreter means that a program exists but its interpreter doesn't: a script's shell, or the
// dynamic loader.
type MissingInterpreter struct{ Program, Interpreter string }

func (e *MissingInterpreter) Error() string {
	return fmt.Sprintf("%v: %s needs %s, which isn't in the image", ErrNotFound, e.Program, e.Interpreter)
}

// Is makes the error ErrNotFound, as in shells.
func (e *MissingInterpreter) Is(target error) bool { return target == ErrNotFound }

// Search is the environment in which FindCommand searches.
type Search struct {
	Path string // the container's PATH
	Dir  string // its working directory, absolute
	// Mounts will be made in the root; later ones cover earlier ones.
	Mounts []Mount
	// Programs are single files that will be mounted as well: paths on the host by paths in the
	// container.
	Programs map[string]string
	// Execve means that the runtime executes the command by execve(2), which fails for a file that is neither an ELF file
	// nor a script. Without it, as with --init, the command is executed by execvp(3), which then calls a shell.
	Execve bool
}

// errFormat: the file may be executed, and the kernel can't.
var errFormat = errors.New("exec format error")

// FindCommand returns an error that Is ErrNotFound or ErrCantInvoke if a command can't be executed in the
// root. It returns nil if that can't be determined; the kernel then decides.
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
		if errors.As(err, &missing) || errors.Is(err, errFormat) {
			return err // the runtime takes the first file that may be executed
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

// openPath opens the file that the container will see at an absolute path, with O_PATH.
func (s finder) openPath(at string) (*os.File, error) {
	if source, ok := s.Programs[path.Clean(at)]; ok {
		return openHost(source)
	}
	return s.view.openPath(at)
}

// maxScripts is the kernel's limit for scripts whose interpreter is another script.
const maxScripts = 5

// checkInterpreter returns a MissingInterpreter if the kernel wouldn't find the interpreter of f. That is
// the usual reason for "no such file" about a file that exists.
func (s finder) checkInterpreter(f *os.File, at string, scripts int) error {
	r, err := inroot.Reopen(f)
	if err != nil {
		return nil //nolint:nilerr // not a regular file, or unreadable for this process: the kernel decides
	}
	defer r.Close() // it is only read
	p := inspectProgram(r)
	if p.foreign {
		return fmt.Errorf("%w: %s: %w: it is for another processor than %s", ErrCantInvoke, at, errFormat, runtime.GOARCH)
	}
	if p.unknown && s.Execve && !kernelKnowsOtherFormats() {
		return fmt.Errorf("%w: %s: %w: it is neither a program for %s nor a script that begins with #! and an interpreter", ErrCantInvoke, at, errFormat, runtime.GOARCH)
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

// kernelKnowsOtherFormats reports whether formats of programs are registered with the kernel (binfmt_misc), or can't be listed.
func kernelKnowsOtherFormats() bool {
	entries, err := os.ReadDir("/proc/sys/fs/binfmt_misc")
	return err != nil && !errors.Is(err, fs.ErrNotExist) || slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return e.Name() != "register" && e.Name() != "status"
	})
}

func (s finder) makeAbsolute(name string) string {
	if path.IsAbs(name) {
		return name
	}
	return path.Join("/", s.Dir, name)
}
