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
	// Name is "runc" or "crun"; it says how the state directory looks. Others
	// count as runc.
	Name string
	// Path of the program, absolute.
	Path string
	// Root is the state directory that the runtime uses without --root.
	Root string
}

// DefaultRoot is the state directory of a runtime that isn't told one. xdg is
// XDG_RUNTIME_DIR: crun goes there whenever it is set, runc only if not root.
func DefaultRoot(name, xdg string, uid int) string {
	if xdg != "" && (name == "crun" || uid != 0) {
		return filepath.Join(xdg, name)
	}
	return filepath.Join("/run", name)
}

// stateFile is what a runtime keeps in a container's state directory.
func (r Runtime) stateFile() string {
	if r.Name == "crun" {
		return "status"
	}
	return "state.json"
}

// stateDir is the state directory of all containers of this call.
func (r Runtime) stateDir(c call) string {
	if c.root != "" {
		return c.root
	}
	return r.Root
}

// statePath is the path of the container's state, which exists as long as the
// container does.
func (r Runtime) statePath(root, id string) string { return filepath.Join(root, id, r.stateFile()) }

// hasContainer says that a container of this id was made by this runtime.
func (r Runtime) hasContainer(root, id string) bool {
	if id == "" || id == "." || id == ".." || strings.ContainsRune(id, '/') {
		return false
	}
	_, err := os.Lstat(r.statePath(root, id))
	return err == nil
}

// chooseRuntime takes the runtime that made the container. Containers that don't exist
// are the first one's.
func chooseRuntime(all []Runtime, c call) (Runtime, error) {
	if len(all) == 0 {
		return Runtime{}, errors.New("no OCI runtime is configured, and neither crun nor runc is in PATH: install one, or set runtime in berth's configuration")
	}
	for _, r := range all[:len(all):len(all)] {
		for _, word := range c.words {
			if len(all) > 1 && r.hasContainer(r.stateDir(c), word) {
				return r, nil
			}
		}
	}
	return all[0], nil
}

// checkProgram refuses a runtime that is berth's own wrapper: it would become itself
// for ever. self is the path of the running program.
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
