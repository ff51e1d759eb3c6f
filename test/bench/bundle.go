package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// way is one way of creating a container.
type way struct {
	name, goal string
	floor      bool     // see variant
	runtime    []string // arguments before the runtime's own
	env        []string // of the runtime
	root       string   // "" for the common one
	// change turns the plain spec into that of the case.
	change func(*specs.Spec)
	// before, if set, is called after the bundle was written, outside of the measured time; after
	// is called while the container exists.
	before func() error
	after  func(bundle string) error

	dir string // of the bundle
}

// wrapped asks for GPUs through the wrapper.
func (b *bench) wrapped(conf string, gpus int, goal string) way {
	if gpus == 0 {
		return way{name: "berth-runtime, no GPU", goal: goal, runtime: wrapper(), env: using(conf)}
	}
	return b.asking(conf, fmt.Sprint(gpus), goal)
}

func (b *bench) asking(conf, request, goal string) way {
	return way{name: "berth-runtime, " + counted(request), goal: goal, runtime: wrapper(), env: using(conf), change: annotated(request)}
}

// hooked asks for GPUs through berth's hook, called by a plain runtime.
func (b *bench) hooked(conf, runtime, request, goal string) way {
	return way{name: "berth-hook, " + counted(request), goal: goal, runtime: []string{runtime}, change: func(s *specs.Spec) {
		path, _ := filepath.Abs("bin/berth-hook")
		hooked(path, "berth-hook", "--config", conf, "createRuntime", "--request", request)(s)
		s.Hooks.Poststop = []specs.Hook{{Path: path, Args: []string{"berth-hook", "--config", conf, "poststop"}}}
	}}
}

func wrapper() []string { return []string{"bin/berth-runtime"} }

func using(conf string) []string { return []string{"BERTH_CONFIG=" + conf} }

func annotated(request string) func(*specs.Spec) {
	return func(s *specs.Spec) { s.Annotations = map[string]string{"berth.gpus": request} }
}

// hooked makes the runtime call a program at createRuntime.
func hooked(path string, args ...string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: path, Args: args}}}
	}
}

func counted(request string) string {
	if request == "1" {
		return "1 GPU"
	}
	return request + " GPUs"
}

// config returns a configuration of berth with that runtime.
func (b *bench) config(runtime string) (string, error) {
	path := filepath.Join(b.dir, filepath.Base(runtime)+".toml")
	berth, err := filepath.Abs("bin/berth")
	if err != nil {
		return "", err
	}
	return path, os.WriteFile(path, fmt.Appendf(nil, "runtime = %q\nberth = %q\n", runtime, berth), 0o644)
}

// bundle writes the bundle of a case.
func (b *bench) bundle(c way) error {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	spec, err := b.plain()
	if err != nil {
		return err
	}
	if c.root != "" {
		spec.Root.Path = c.root
	}
	if c.change != nil {
		c.change(spec)
	}
	return writeSpec(c.dir, spec)
}

// plain returns the spec that runc generates, with the shared root.
func (b *bench) plain() (*specs.Spec, error) {
	if _, err := os.Stat(filepath.Join(b.dir, "config.json")); err != nil {
		cmd := exec.Command("runc", "spec")
		cmd.Dir = b.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("runc spec: %w: %s", err, out)
		}
	}
	spec, err := readSpec(b.dir)
	if err != nil {
		return nil, err
	}
	spec.Process.Terminal, spec.Process.Args = false, []string{"/bin/true"}
	spec.Root = &specs.Root{Path: b.root}
	return spec, nil
}

func readSpec(bundle string) (*specs.Spec, error) {
	raw, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, err
	}
	var spec specs.Spec
	if err := json.Unmarshal(raw, &spec); err != nil {
		return nil, fmt.Errorf("%s/config.json: %w", bundle, err)
	}
	return &spec, nil
}

func writeSpec(bundle string, spec *specs.Spec) error {
	raw, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, "config.json"), raw, 0o644)
}
