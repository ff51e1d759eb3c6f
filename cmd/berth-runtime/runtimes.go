package main

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/berth-gpu/berth/hook/wrapper"
)

// listRuntimes lists the configured runtime, or the first that is installed, and after it
// those whose containers may still exist. Where the configuration cannot be used, the
// list has the installed runtimes, and the configured one if it could be read; the error
// says why.
func (s *settings) listRuntimes() ([]wrapper.Runtime, error) {
	err := s.loadConfig()
	configured := s.config.Runtime
	var all []wrapper.Runtime
	if configured != "" {
		path, missing := findProgram(configured)
		if missing != nil {
			path = configured // the error of the exec names it
		}
		all = append(all, newRuntime(path))
	}
	for _, name := range []string{"crun", "runc"} {
		path, missing := findProgram(name)
		if missing == nil && (len(all) == 0 || all[0].Path != path) {
			all = append(all, newRuntime(path))
		}
	}
	return all, err
}

// findProgram looks for a program where PATH says. Without a PATH, which podman leaves
// out for its cleanup, it looks in the usual directories.
func findProgram(name string) (path string, err error) {
	path, err = exec.LookPath(name)
	if err == nil || os.Getenv("PATH") != "" || filepath.Base(name) != name {
		return path, err
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", err
}

func newRuntime(path string) wrapper.Runtime {
	name := "runc"
	if filepath.Base(path) == "crun" {
		name = "crun"
	}
	root := wrapper.DefaultRoot(name, os.Getenv("XDG_RUNTIME_DIR"), os.Geteuid())
	return wrapper.Runtime{Name: name, Path: path, Root: root}
}
