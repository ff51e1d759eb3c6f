package main

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/berth-gpu/berth/hook/wrapper"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// listRuntimes returns the configured runtime, or else an installed one that works on this host, followed by
// the other installed runtimes, whose containers may still exist. If the configuration cannot
// be used, the error is returned beside the installed runtimes, and the configured runtime if
// it could be read.
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
	for _, name := range orderRuntimes(cgroup.Detect(s.config.Host.Cgroup)) {
		if len(all) > 0 {
			if all[0].Name != name { // two of one name have the same containers
				other := newRuntime(name)
				other.Path, other.Find = "", func() (string, error) { return findProgram(name) }
				all = append(all, other)
			}
		} else if path, missing := findProgram(name); missing == nil {
			all = append(all, newRuntime(path))
		}
	}
	return all, err
}

// orderRuntimes prefers crun where it works, as berth run does. It also does if the cgroups can't be detected.
func orderRuntimes(h cgroup.Hierarchy, err error) []string {
	if err == nil && !h.CrunWorks(process.MayLiftMemlock("/proc")) {
		return []string{"runc", "crun"}
	}
	return []string{"crun", "runc"}
}

// findProgram looks for a program in PATH. Without a PATH, which podman leaves out for its
// cleanup, it looks in the system's directories.
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
