package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// bench has the paths of a measurement: a root file system and bundles.
type bench struct {
	options
	dir, root string
	gpus      int // of this node
	next      int
}

// topic is one or several related sections, and the simulated node on which they are measured.
type topic struct {
	name, profile string
	measure       func(*bench, context.Context) ([]section, error)
}

func topics() []topic {
	one := func(f func(*bench, context.Context) (section, error)) func(*bench, context.Context) ([]section, error) {
		return func(b *bench, ctx context.Context) ([]section, error) {
			s, err := f(b, ctx)
			return []section{s}, err
		}
	}
	return []topic{
		{"create", small, (*bench).creates},
		{"alone", small, one((*bench).alone)},
		{"edits", small, (*bench).edits},
		{"images", small, one((*bench).images)},
		{"peer", small, (*bench).peer},
		{"launch", small, one((*bench).launch)},
		{"gangs", small, one((*bench).gangs)},
		{"match", small, one((*bench).match)},
		{"discover", small, one((*bench).discover)},
		{"memory", small, one((*bench).memory)},
		{"ledger", small, one((*bench).ledger)},
		{"broker", small, (*bench).broker},
		{"growth", large, (*bench).growth},
	}
}

// The nodes: eight GPUs, and sixteen.
const small, large = "dgx-h100", "sixteen"

func profiles() []string { return []string{small, large} }

func names() string {
	var all []string
	for _, t := range topics() {
		all = append(all, t.name)
	}
	for _, t := range hostTopics() {
		all = append(all, t.name)
	}
	return strings.Join(all, ", ")
}

// measure runs the topics of this node.
func measure(ctx context.Context, o options) error {
	dir, err := os.MkdirTemp("/var/lib/berth", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{options: o, dir: dir, root: filepath.Join(dir, "root")}
	if err := b.ready(ctx); err != nil {
		return err
	}
	var report strings.Builder
	out := io.MultiWriter(os.Stdout, &report)
	for _, t := range topics() {
		if !strings.HasPrefix(t.name, o.only) || (t.profile == large) != (b.gpus >= 16) {
			continue
		}
		sections, err := t.measure(b, ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		for _, s := range sections {
			if err := s.print(out); err != nil {
				return err
			}
		}
	}
	if o.write == "" {
		return nil
	}
	return os.WriteFile(o.write, []byte(report.String()), 0o644)
}

// ready prepares what all topics need.
func (b *bench) ready(ctx context.Context) error {
	if err := unpack(ctx, "debian", b.root); err != nil {
		return err
	}
	if _, err := timed(ctx, nil, "bin/berth", "discover", "--quiet"); err != nil {
		return err
	}
	inv, err := inventory(ctx)
	b.gpus = len(inv.GPUs)
	return err
}

// unpack makes a root file system from an image of the demo's.
func unpack(ctx context.Context, image, root string) error {
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	const script = `set -e; cd .cache/image/$1
blob() { grep -o 'sha256:[0-9a-f]*' "$1" | sed 's|:|/|; s|^|blobs/|'; }
manifest=$(blob index.json | head -n1)
for layer in $(grep -o '"layers":.*' "$manifest" | grep -o 'sha256:[0-9a-f]*' | sed 's|:|/|; s|^|blobs/|'); do tar -xaf "$layer" -C "$0" 2>/dev/null || tar -xzf "$layer" -C "$0"; done`
	out, err := exec.CommandContext(ctx, "sh", "-c", script, root, image).CombinedOutput()
	if err != nil {
		return fmt.Errorf("unpack the image: %w: %s", err, out)
	}
	return nil
}

// creates compares each runtime's create with the same through berth's entry points.
func (b *bench) creates(ctx context.Context) ([]section, error) {
	var all []section
	for _, runtime := range []string{"crun", "runc"} {
		s, err := b.create(ctx, runtime, map[string]string{"crun": "≤ floor + 2.5 ms", "runc": "≤ floor + 3.5 ms"}[runtime])
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

const aboutCreate = "From the call of `create` to its return; the container is deleted outside of the measurement. CPU is the processor time of all processes meanwhile, but for the container's own. The second row is a program that does nothing but become the runtime: so much of what berth-runtime adds is the start of a process in Go, whatever it does, and that is the floor. A hook that does nothing is the same for berth-hook, which the plain runtime calls at createRuntime."

// create returns the case of a container with one GPU, with its design goal.
func (b *bench) create(ctx context.Context, runtime, goal string) (section, error) {
	conf, err := b.config(runtime)
	if err != nil {
		return section{}, err
	}
	empty, err := filepath.Abs(filepath.Join(built, "empty"))
	if err != nil {
		return section{}, err
	}
	cases := []way{
		{name: "plain " + runtime, runtime: []string{runtime}},
		{name: "an empty Go program, then " + runtime, runtime: []string{empty, runtime}, floor: true},
		b.wrapped(conf, 0, "≤ floor + 1 ms"), b.wrapped(conf, 1, goal), b.wrapped(conf, b.gpus, ""),
		{name: "a hook that does nothing", runtime: []string{runtime}, change: hooked(empty, "empty")},
		b.hooked(conf, runtime, "1", "+5 ms"), b.hooked(conf, runtime, fmt.Sprint(b.gpus), ""),
	}
	results, err := b.run(ctx, runtime, cases)
	return compare(runtime+" create", aboutCreate, results), err
}

// run interleaves cases, each in a state directory and a bundle of its own.
func (b *bench) run(ctx context.Context, of string, cases []way) ([]result, error) {
	var variants []variant
	for i, c := range cases {
		c.dir = filepath.Join(b.dir, fmt.Sprintf("%s-%d", of, i))
		variants = append(variants, variant{name: c.name, goal: c.goal, floor: c.floor, run: func(ctx context.Context) (cost, error) {
			b.next++
			return b.once(ctx, c, fmt.Sprintf("bench%d", b.next))
		}})
	}
	return interleave(ctx, b.rounds, variants)
}

// once creates a container, and deletes it unmeasured.
func (b *bench) once(ctx context.Context, c way, id string) (cost, error) {
	if err := b.bundle(c); err != nil {
		return cost{}, err
	}
	if c.before != nil {
		if err := c.before(); err != nil {
			return cost{}, err
		}
	}
	call := func(args ...string) (cost, error) {
		return timed(ctx, c.env, slices.Concat(c.runtime, []string{"--root", filepath.Join(c.dir, "state")}, args)...)
	}
	took, err := call("create", "--bundle", c.dir, "--pid-file", filepath.Join(c.dir, "pid"), id)
	if err == nil && c.after != nil {
		err = c.after(c.dir)
	}
	_, ended := call("delete", "--force", id)
	if err == nil {
		err = ended
	}
	return took, err
}
