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
	"github.com/berth-gpu/berth/guard"
	"github.com/berth-gpu/berth/hook/message"
	"github.com/berth-gpu/berth/hook/wrapper"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/ledger"
)

func main() {
	// The parent-death signal and the signal mask belong to the main thread.
	runtime.LockOSThread()
	os.Exit(wrapper.Run(context.Background(), newOptions(os.Args, readEnvironment())))
}

// newOptions returns the wrapper's options. The configuration is read at most once, and only
// when a call needs it.
func newOptions(args, env []string) wrapper.Options {
	s := &settings{path: cmp.Or(os.Getenv("BERTH_CONFIG"), berth.ConfigPath)}
	return wrapper.Options{
		Args: args, Env: env, Self: "/proc/self/exe", Stderr: os.Stderr,
		Runtimes: s.listRuntimes,
		Trust:    s.trustPolicy,
		Node:     s.openNode,

		Unconfigured: func() (wrapper.Node, error) { return openNode(berth.Config{}) },
	}
}

// readEnvironment returns this process's environment exactly as it was given. os.Environ
// leaves out repeated names; it is used only where /proc is not mounted.
func readEnvironment() []string {
	data, err := smallfile.Read("/proc/self/environ", 16<<20)
	if err != nil {
		return os.Environ()
	}
	if len(data) == 0 { // splitting "" would give one empty entry
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

func (s *settings) loadConfig() error {
	if !s.loaded {
		s.config, s.err = berth.LoadConfig(s.path)
		s.loaded = true
	}
	return s.err
}

// trustPolicy returns the policy on requests that an image's author may have written.
func (s *settings) trustPolicy() (wrapper.Trust, error) {
	err := s.loadConfig()
	p := s.config.Policy
	return wrapper.Trust{
		Environment: p.Environment, PodmanAnnotation: p.PodmanAnnotation,
		VisibleDevices: wrapper.Visible(p.VisibleDevices), CountIndices: p.NVIDIAIndices == "count",
	}, err
}

func (s *settings) openNode() (wrapper.Node, error) {
	if err := s.loadConfig(); err != nil {
		return nil, err
	}
	return openNode(s.config)
}

// node adapts berth.Node to package wrapper.
type node struct {
	*berth.Node
	guard.Guard
}

func openNode(c berth.Config) (wrapper.Node, error) {
	n, err := berth.Open(c)
	if err != nil {
		return nil, err
	}
	return node{n, n.Guard()}, nil
}

// Acquire implements wrapper.Node.
func (n node) Acquire(ctx context.Context, ask ledger.Ask) (ledger.Lease, error) {
	l, err := n.Node.Acquire(ctx, ask)
	return l, message.WithAdvice(err)
}

// Leases implements wrapper.Node. Unlike a node's view it does not need the inventory.
func (n node) Leases() ([]ledger.Status, error) {
	view, err := n.Ledger.View()
	return view.Leases, err
}

// ReadLeases implements wrapper.Node.
func (n node) ReadLeases() ([]ledger.Lease, error) { return n.Node.Leases() }
