// Command berth-runtime is an OCI runtime for the configuration of Docker,
// containerd and podman: it gives containers the GPUs that they ask for and then
// becomes the real runtime. Package hook/wrapper says how.
//
// It is to be linked with -E main.entry (see entry_amd64.s): what was ignored or
// blocked when it was started is then the same for the real runtime. Without, all
// else works.
package main

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/hook/wrapper"
	"github.com/berth-gpu/berth/internal/smallfile"
)

func main() {
	// The main thread carries what the parent wants at its death.
	runtime.LockOSThread()
	tightTimers()
	os.Exit(wrapper.Run(context.Background(), options(os.Args, environment())))
}

// options reads the configuration once, and only when it is asked for.
func options(args, env []string) wrapper.Options {
	s := &settings{path: cmp.Or(os.Getenv("BERTH_CONFIG"), berth.ConfigPath)}
	return wrapper.Options{
		Args: args, Env: env, Self: "/proc/self/exe", Stderr: os.Stderr, Inherited: inherited(), Begun: begun(),
		Runtimes: s.runtimes,
		Trust:    s.trust,
		Node:     s.node,
	}
}

// environment is this process's own, as it was given: os.Environ leaves out
// repeated names, and has what was put there for Go's runtime.
func environment() []string {
	data, err := smallfile.Read("/proc/self/environ", 16<<20)
	if err != nil {
		return slices.DeleteFunc(os.Environ(), func(entry string) bool { return entry == "GOMAXPROCS=1" })
	}
	if len(data) == 0 { // else it would be one empty entry
		return nil
	}
	var env []string
	for entry := range bytes.SplitSeq(bytes.TrimSuffix(data, []byte{0}), []byte{0}) {
		env = append(env, string(entry))
	}
	return env
}

type settings struct {
	path   string
	loaded bool
	config berth.Config
	err    error
}

func (s *settings) load() error {
	if !s.loaded {
		s.config, s.err = load(s.path)
		s.loaded = true
	}
	return s.err
}

// trust is what policy says of strangers' words.
func (s *settings) trust() (wrapper.Trust, error) {
	err := s.load()
	p := s.config.Policy
	return wrapper.Trust{
		Environment: p.Environment, PodmanAnnotation: p.PodmanAnnotation,
		VisibleDevices: wrapper.Visible(p.VisibleDevices), CountIndices: p.NVIDIAIndices == "count",
	}, err
}

func (s *settings) node() (wrapper.Node, error) {
	if err := s.load(); err != nil {
		return nil, err
	}
	return openNode(s.config)
}

// runtimes lists the configured runtime, or the first that is installed, and
// after it those whose containers may still be there. Without a configuration
// that can be read, what is installed serves those containers.
func (s *settings) runtimes() ([]wrapper.Runtime, error) {
	err := s.load()
	var all []wrapper.Runtime
	if s.config.Runtime != "" {
		path, look := find(s.config.Runtime)
		if look != nil {
			path = s.config.Runtime // to be named in the error of the exec
		}
		all = append(all, named(path))
	}
	for _, name := range []string{"crun", "runc"} {
		path, look := find(name)
		if look == nil && (len(all) == 0 || all[0].Path != path) {
			all = append(all, named(path))
		}
	}
	return all, err
}

// find looks for a program where PATH says. podman leaves whom it has delete a
// container without one: then it looks where programs usually are.
func find(name string) (path string, err error) {
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

func named(path string) wrapper.Runtime {
	name := "runc"
	if filepath.Base(path) == "crun" {
		name = "crun"
	}
	root := wrapper.DefaultRoot(name, os.Getenv("XDG_RUNTIME_DIR"), os.Geteuid())
	return wrapper.Runtime{Name: name, Path: path, Root: root}
}
