package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-gpu/berth/gpu"
)

// bench is the place where the measuring happens: a root file system and bundles.
type bench struct {
	options
	dir, root string
	next      int
}

// measure runs all sections on this node.
func measure(ctx context.Context, o options) error {
	dir, err := os.MkdirTemp("/var/lib/berth", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{options: o, dir: dir, root: filepath.Join(dir, "root")}
	if err := b.unpack(ctx); err != nil {
		return err
	}
	if _, err := timed(ctx, nil, "bin/berth", "discover", "--quiet"); err != nil {
		return err
	}
	var report strings.Builder
	heading(&report, o.rounds)
	out := io.MultiWriter(os.Stdout, &report)
	for _, f := range []func(context.Context) (section, error){
		func(ctx context.Context) (section, error) { return b.create(ctx, "crun") },
		func(ctx context.Context) (section, error) { return b.create(ctx, "runc") },
		b.launch, b.match, b.discover, b.memory, b.ledger,
	} {
		s, err := f(ctx)
		if err != nil {
			return err
		}
		if err := s.print(out); err != nil {
			return err
		}
	}
	if o.write == "" {
		return nil
	}
	return os.WriteFile(o.write, []byte(report.String()), 0o644)
}

// unpack makes a root file system from the demo's image.
func (b *bench) unpack(ctx context.Context) error {
	if err := os.Mkdir(b.root, 0o755); err != nil {
		return err
	}
	const script = `set -e; cd .cache/image/debian
blob() { grep -o 'sha256:[0-9a-f]*' "$1" | sed 's|:|/|; s|^|blobs/|'; }
manifest=$(blob index.json | head -n1)
for layer in $(grep -o '"layers":.*' "$manifest" | grep -o 'sha256:[0-9a-f]*' | sed 's|:|/|; s|^|blobs/|'); do tar -xaf "$layer" -C "$0" 2>/dev/null || tar -xzf "$layer" -C "$0"; done`
	out, err := exec.CommandContext(ctx, "sh", "-c", script, b.root).CombinedOutput()
	if err != nil {
		return fmt.Errorf("unpack the image: %w: %s", err, out)
	}
	return nil
}

// bundle writes an OCI bundle over the root, with annotations.
func (b *bench) bundle(name string, annotations map[string]string) (string, error) {
	dir := filepath.Join(b.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	spec, err := b.template()
	if err != nil {
		return "", err
	}
	process := spec["process"].(map[string]any)
	process["terminal"], process["args"] = false, []string{"/bin/true"}
	spec["root"] = map[string]any{"path": b.root}
	spec["annotations"] = annotations
	raw, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o644)
}

// template is the spec that runc makes up.
func (b *bench) template() (map[string]any, error) {
	path := filepath.Join(b.dir, "config.json")
	if _, err := os.Stat(path); err != nil {
		cmd := exec.Command("runc", "spec")
		cmd.Dir = b.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("runc spec: %w: %s", err, out)
		}
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var spec map[string]any
	return spec, json.Unmarshal(raw, &spec)
}

// create compares a runtime's create with the same through the wrapper.
func (b *bench) create(ctx context.Context, runtime string) (section, error) {
	conf, err := b.config(runtime)
	if err != nil {
		return section{}, err
	}
	variants := []variant{
		{name: "plain " + runtime, run: b.creator(runtime+"-plain", nil, nil, runtime)},
		{name: "an empty Go program, then " + runtime, run: b.creator(runtime+"-empty", nil, nil, ".cache/bench/empty", runtime)},
	}
	for _, v := range []struct{ gpus, goal string }{{"0", "+1 ms"}, {"1", "+3 ms"}, {"8", "+4 ms"}} {
		var request map[string]string
		if v.gpus != "0" {
			request = map[string]string{"berth.gpus": v.gpus}
		}
		variants = append(variants, variant{
			name: "berth-runtime, " + v.gpus + " GPUs", goal: v.goal,
			run: b.creator(runtime+"-"+v.gpus, request, conf, "bin/berth-runtime"),
		})
	}
	results, err := interleave(ctx, b.rounds, variants)
	return compare(runtime+" create", "From the call of `create` to its return; the container is deleted outside of the measurement. The second row is a program that does nothing but become the runtime: so much of what berth adds is the start of a process in Go, whatever it does.", results), err
}

// config returns the environment in which berth uses the runtime.
func (b *bench) config(runtime string) ([]string, error) {
	path := filepath.Join(b.dir, filepath.Base(runtime)+".toml")
	return []string{"BERTH_CONFIG=" + path}, os.WriteFile(path, fmt.Appendf(nil, "runtime = %q\n", runtime), 0o644)
}

// creator returns a function that creates a container, and deletes it unmeasured.
func (b *bench) creator(name string, annotations map[string]string, env []string, runtime ...string) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		dir, err := b.bundle(name, annotations)
		if err != nil {
			return 0, err
		}
		b.next++
		id, state := fmt.Sprintf("bench%d", b.next), filepath.Join(b.dir, "state-"+name)
		call := func(args ...string) (time.Duration, error) {
			return timed(ctx, env, slices.Concat(runtime, []string{"--root", state}, args)...)
		}
		d, err := call("create", "--bundle", dir, "--pid-file", filepath.Join(dir, "pid"), id)
		if err != nil {
			return 0, err
		}
		_, err = call("delete", "--force", id)
		return d, err
	}
}

// launch compares berth run with crun run on the same root.
func (b *bench) launch(ctx context.Context) (section, error) {
	dir, err := b.bundle("run", nil)
	if err != nil {
		return section{}, err
	}
	conf, err := b.config("crun")
	if err != nil {
		return section{}, err
	}
	run := func(argv ...string) func(context.Context) (time.Duration, error) {
		return func(ctx context.Context) (time.Duration, error) { return timed(ctx, conf, argv...) }
	}
	crun := func(ctx context.Context) (time.Duration, error) {
		b.next++
		return timed(ctx, nil, "crun", "run", "--bundle", dir, fmt.Sprintf("bench%d", b.next))
	}
	results, err := interleave(ctx, b.rounds, []variant{
		{name: "plain crun run", run: crun},
		{name: "berth run", goal: "≤ 2×", run: run("bin/berth", "run", b.root, "/bin/true")},
		{name: "berth run --gpus 1", goal: "≤ 2×", run: run("bin/berth", "run", "--gpus", "1", b.root, "/bin/true")},
		{name: "berth run --gpus 1, OCI layout", goal: "≤ 2×", run: run("bin/berth", "run", "--gpus", "1", "oci:.cache/image/debian", "/bin/true")},
	})
	return compare("berth run", "From the call to the exit of `/bin/true` in a local image. berth also makes a throw-away overlay and, with `--gpus`, takes and gives back a lease.", results), err
}

// match times the choice of the best set in this node's inventory, and in one of
// twice the size.
func (b *bench) match(ctx context.Context) (section, error) {
	s := section{title: "match", about: "The best set of GPUs by topology, the slowest count of each size.", rows: [][]string{{"GPUs", "count", "median", "goal"}}}
	inv, err := inventory(ctx)
	if err != nil {
		return s, err
	}
	for _, node := range []gpu.Inventory{inv, twice(inv)} {
		slowest, count := time.Duration(0), 0
		for n := 1; n <= len(node.GPUs); n++ {
			request, err := gpu.ParseRequest(fmt.Sprint(n))
			if err != nil {
				return s, err
			}
			r, err := interleave(ctx, b.rounds, []variant{{run: func(context.Context) (time.Duration, error) {
				start := time.Now()
				_, err := node.Match(request, nil)
				return time.Since(start), err
			}}})
			if err != nil {
				return s, err
			}
			if d := r[0].at(0.5); d > slowest {
				slowest, count = d, n
			}
		}
		s.rows = append(s.rows, []string{fmt.Sprint(len(node.GPUs)), fmt.Sprint(count), fmt.Sprintf("%.3f ms", ms(slowest)), "≤ 1 ms at 16"})
	}
	return s, nil
}

func inventory(ctx context.Context) (gpu.Inventory, error) {
	out, err := exec.CommandContext(ctx, "bin/berth", "discover", "--json").Output()
	if err != nil {
		return gpu.Inventory{}, fmt.Errorf("berth discover --json: %w", err)
	}
	var inv gpu.Inventory
	return inv, json.Unmarshal(out, &inv)
}

// twice is a node of two such boards, without NVLink between them.
func twice(inv gpu.Inventory) gpu.Inventory {
	n := len(inv.GPUs)
	big := gpu.Inventory{Driver: inv.Driver, GPUs: append([]gpu.GPU{}, inv.GPUs...), Links: append([]gpu.Link{}, inv.Links...)}
	for i, g := range inv.GPUs {
		g.Index, g.Minor, g.UUID = g.Index+n, g.Minor+n, g.UUID+"-2"
		big.GPUs = append(big.GPUs, g)
		for k := range inv.GPUs {
			big.Links = append(big.Links, gpu.Link{A: k, B: i + n, PCIe: gpu.PathSYS})
		}
	}
	for _, l := range inv.Links {
		l.A, l.B = l.A+n, l.B+n
		big.Links = append(big.Links, l)
	}
	return big
}

func (b *bench) discover(ctx context.Context) (section, error) {
	results, err := interleave(ctx, max(3, b.rounds/8), []variant{{name: "berth discover", run: func(ctx context.Context) (time.Duration, error) {
		return timed(ctx, nil, "bin/berth", "discover", "--quiet")
	}}})
	return compare("discover", "Everything: NVML, sysfs, nodes, driver directory (already there), snapshot.", results), err
}

// memory reads the wrapper's peak from busybox time, whose own is small: the
// kernel counts the parent's pages for a child that hasn't called exec yet.
// busybox takes the kernel's number, which is in kB, for pages of 4 kB.
func (b *bench) memory(ctx context.Context) (section, error) {
	s := section{title: "memory", about: "Peak resident set of `berth-runtime create` with 8 GPUs, up to its exec of the runtime.", rows: [][]string{{"case", "peak", "goal"}}}
	dir, err := b.bundle("memory", map[string]string{"berth.gpus": "8"})
	if err != nil {
		return s, err
	}
	conf, err := b.config("/bin/true")
	if err != nil {
		return s, err
	}
	cmd := exec.CommandContext(ctx, "busybox", "time", "-v", "bin/berth-runtime", "create", "--bundle", dir, "memory")
	cmd.Env = append(os.Environ(), conf...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return s, fmt.Errorf("measure memory: %w: %s", err, out)
	}
	m := regexp.MustCompile(`Maximum resident set size \(kbytes\): (\d+)`).FindSubmatch(out)
	if m == nil {
		return s, fmt.Errorf("measure memory: busybox time said: %s", out)
	}
	quadruple, err := strconv.Atoi(string(m[1]))
	if err != nil {
		return s, err
	}
	s.rows = append(s.rows, []string{"berth-runtime", fmt.Sprintf("%.1f MB", float64(quadruple)/4/1024), "< 15 MB"})
	return s, nil
}
