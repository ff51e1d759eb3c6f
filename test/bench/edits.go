package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// step is one kind of edit, taken from a spec that berth has written.
type step struct {
	name  string
	apply func(s, full *specs.Spec)
}

// steps returns the steps in the order in which they are added.
func steps() []step {
	return []step{
		{"device nodes", func(s, full *specs.Spec) { s.Linux.Devices = full.Linux.Devices }},
		{"device rules", func(s, full *specs.Spec) { s.Linux.Resources.Devices = full.Linux.Resources.Devices }},
		{"driver directory", mounts(func(d string) bool { return strings.HasSuffix(d, "/nvidia") && strings.HasPrefix(d, "/usr/local/") })},
		{"nvidia-smi", mounts(func(d string) bool { return strings.HasPrefix(d, "/usr/bin/") })},
		{"sockets", mounts(func(d string) bool { return strings.HasPrefix(d, "/run/") })},
		{"firmware, OpenCL", mounts(func(d string) bool {
			return strings.HasPrefix(d, "/usr/lib/firmware") || strings.Contains(d, "/OpenCL/")
		})},
		{"environment, capabilities, masks", func(s, full *specs.Spec) {
			s.Process.Env, s.Process.Capabilities, s.Process.Rlimits = full.Process.Env, full.Process.Capabilities, full.Process.Rlimits
			s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = full.Linux.MaskedPaths, full.Linux.ReadonlyPaths
			s.Annotations = full.Annotations
		}},
	}
}

// mounts adds the mounts whose destination choose accepts.
func mounts(chosen func(destination string) bool) func(s, full *specs.Spec) {
	return func(s, full *specs.Spec) {
		for _, m := range full.Mounts {
			have := slices.ContainsFunc(s.Mounts, func(o specs.Mount) bool { return o.Destination == m.Destination })
			if !have && chosen(m.Destination) {
				s.Mounts = append(s.Mounts, m)
			}
		}
	}
}

const aboutEdits = "What the runtime itself takes for what berth writes into the spec of a container with one GPU: no berth runs here. Each row adds one kind of edit to all rows above it."

// edits times plain creates with one kind of edit after another.
func (b *bench) edits(ctx context.Context) ([]section, error) {
	var all []section
	for _, runtime := range []string{"crun", "runc"} {
		s, err := b.editsOf(ctx, runtime)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func (b *bench) editsOf(ctx context.Context, runtime string) (section, error) {
	usual, err := b.rewritten(ctx, runtime, "1", "compute,utility")
	if err != nil {
		return section{}, err
	}
	most, err := b.rewritten(ctx, runtime, "1", "all")
	if err != nil {
		return section{}, err
	}
	cache := filepath.Join(b.dir, "ld.so.cache")
	if err := copyFile(filepath.Join(b.root, "etc/ld.so.cache"), cache); err != nil {
		return section{}, err
	}
	steps := append(steps(),
		step{"loader cache as a bind", func(s, _ *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/etc/ld.so.cache", Type: "bind", Source: cache, Options: []string{"rbind", "ro", "nosuid", "nodev"}})
		}},
		step{"graphics: nodes and files", func(s, _ *specs.Spec) {
			s.Linux.Devices, s.Linux.Resources.Devices = most.Linux.Devices, most.Linux.Resources.Devices
			mounts(func(string) bool { return true })(s, most)
		}})
	cases := []way{{name: "plain " + runtime, runtime: []string{runtime}}}
	for i, st := range steps {
		cases = append(cases, way{name: "+ " + st.name, runtime: []string{runtime}, change: func(s *specs.Spec) {
			for _, earlier := range steps[:i+1] {
				earlier.apply(s, usual)
			}
		}})
	}
	results, err := b.run(ctx, runtime+"-edit", cases)
	if err != nil {
		return section{}, err
	}
	return stairs(runtime+": the cost of each edit", aboutEdits, results), nil
}

// rewritten returns the spec that berth-runtime writes for a container with these devices and
// driver capabilities.
func (b *bench) rewritten(ctx context.Context, runtime, request, capabilities string) (*specs.Spec, error) {
	conf, err := b.config(runtime)
	if err != nil {
		return nil, err
	}
	c := b.asking(conf, request, "")
	c.dir = filepath.Join(b.dir, "rewritten")
	c.change = func(s *specs.Spec) {
		annotated(request)(s)
		s.Process.Env = append(s.Process.Env, "NVIDIA_DRIVER_CAPABILITIES="+capabilities)
	}
	var spec *specs.Spec
	c.after = func(bundle string) (err error) {
		spec, err = readSpec(bundle)
		return err
	}
	b.next++
	_, err = b.once(ctx, c, fmt.Sprintf("bench%d", b.next))
	return spec, err
}

// stairs makes a table of results, each compared with the one before.
func stairs(title, about string, results []result) section {
	s := section{title: title, about: about, rows: [][]string{{"with", "median", "p95", "CPU", "more than the row above", "CPU more"}}}
	for i, r := range results {
		row := []string{r.name, show(r.median()), show(at(r.walls, 0.95)), show(at(r.cpus, 0.5)), "-", "-"}
		if i > 0 {
			row[4] = fmt.Sprintf("%+.2f ms", ms(r.median()-results[i-1].median()))
			row[5] = fmt.Sprintf("%+.2f ms", ms(at(r.cpus, 0.5)-at(results[i-1].cpus, 0.5)))
		}
		s.rows = append(s.rows, row)
	}
	return s
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}
