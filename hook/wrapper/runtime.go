package wrapper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Runtime is a real OCI runtime.
type Runtime struct {
	// Name is "runc" or "crun", which decides on the layout of the state directory.
	// Any other program counts as runc.
	Name string
	// Path of the program, absolute. If it is empty, Find looks for the program: only a runtime
	// that has made the container is looked for.
	Path string
	Find func() (string, error)
	// Root is the state directory that the runtime uses without --root.
	Root string
}

// DefaultRoot is the state directory of a runtime that is started without --root. xdg is
// the value of XDG_RUNTIME_DIR: crun uses it whenever it is set, runc only if uid is not
// 0.
func DefaultRoot(name, xdg string, uid int) string {
	if xdg != "" && (name == "crun" || uid != 0) {
		return filepath.Join(xdg, name)
	}
	return filepath.Join("/run", name)
}

// stateFile is the name of the file that a runtime writes for each container.
func (r Runtime) stateFile() string {
	if r.Name == "crun" {
		return "status"
	}
	return "state.json"
}

// stateDir returns the directory that holds the state of all containers of this call.
func (r Runtime) stateDir(c call) string {
	if c.root != "" {
		return c.root
	}
	return r.Root
}

// statePath returns the path of a container's state file, which exists as long as the
// container does.
func (r Runtime) statePath(root, id string) string { return filepath.Join(root, id, r.stateFile()) }

// hasContainer reports whether this runtime has made a container of this id.
func (r Runtime) hasContainer(root, id string) bool {
	if id == "" || id == "." || id == ".." || strings.ContainsRune(id, '/') {
		return false
	}
	_, err := os.Lstat(r.statePath(root, id))
	return err == nil
}

// chooseRuntime returns the runtime that made the container of the call. If no installed runtime has
// made it, the first runtime is chosen. All words of the call are tried as the id, because a word after
// an unknown flag may be the flag's value.
func chooseRuntime(all []Runtime, c call) (Runtime, error) {
	if len(all) == 0 {
		return Runtime{}, errors.New("no OCI runtime is configured, and neither crun nor runc is in PATH: install one, or set runtime in berth's configuration")
	}
	for _, r := range all {
		for _, word := range c.words {
			if len(all) == 1 || !r.hasContainer(r.stateDir(c), word) {
				continue
			}
			var missing error
			if r.Path == "" {
				r.Path, missing = r.Find()
			}
			if missing == nil {
				return r, nil
			}
		}
	}
	return all[0], nil
}

// checkProgram refuses a runtime that is missing, or that is berth's own wrapper, which
// would exec itself for ever. self is a path of the running program.
func (r Runtime) checkProgram(self string) error {
	fi, err := os.Stat(r.Path)
	if err != nil {
		return fmt.Errorf("find OCI runtime: %w; install it, or set another as runtime in berth's configuration", err)
	}
	if own, err := os.Stat(self); err == nil && os.SameFile(fi, own) {
		return fmt.Errorf("OCI runtime %s is berth's own wrapper: configure the real one", r.Path)
	}
	return nil
}
