// Command berth-runtime is an OCI runtime for the configuration of Docker,
// containerd and podman: it gives containers the GPUs that they ask for and then
// becomes the real runtime. Package hook/wrapper says how.
package main

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"runtime"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/hook/wrapper"
	"github.com/berth-gpu/berth/internal/smallfile"
)

func main() {
	// The parent-death signal and the signal mask belong to the main thread.
	runtime.LockOSThread()
	os.Exit(wrapper.Run(context.Background(), options(os.Args, environment())))
}

// options reads the configuration once, and only when a call needs more of it than the
// runtime.
func options(args, env []string) wrapper.Options {
	s := &settings{path: cmp.Or(os.Getenv("BERTH_CONFIG"), berth.ConfigPath)}
	return wrapper.Options{
		Args: args, Env: env, Self: "/proc/self/exe", Stderr: os.Stderr,
		Runtimes: s.runtimes,
		Trust:    s.trust,
		Node:     s.node,
	}
}

// environment returns this process's environment exactly as it was given. os.Environ
// leaves out repeated names; it is used only where /proc is not mounted.
func environment() []string {
	data, err := smallfile.Read("/proc/self/environ", 16<<20)
	if err != nil {
		return os.Environ()
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

// settings is the configuration at path, which is decoded when it is first needed.
type settings struct {
	path   string
	loaded bool
	config berth.Config
	err    error
}

func (s *settings) load() error {
	if !s.loaded {
		s.config, s.err = berth.LoadConfig(s.path)
		s.loaded = true
	}
	return s.err
}

// trust is what the policy says about requests that strangers may have written.
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
