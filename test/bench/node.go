package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
)

// launch compares berth run with crun run on the same root.
func (b *bench) launch(ctx context.Context) (section, error) {
	bundle := filepath.Join(b.dir, "run")
	if err := b.bundle(way{dir: bundle}); err != nil {
		return section{}, err
	}
	conf, err := b.config("crun")
	if err != nil {
		return section{}, err
	}
	run := func(argv ...string) func(context.Context) (cost, error) {
		return func(ctx context.Context) (cost, error) { return timed(ctx, using(conf), argv...) }
	}
	crun := func(ctx context.Context) (cost, error) {
		b.next++
		return timed(ctx, nil, "crun", "run", "--bundle", bundle, fmt.Sprintf("bench%d", b.next))
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
			wanted, err := request.Parse(fmt.Sprint(n))
			if err != nil {
				return s, err
			}
			r, err := interleave(ctx, b.rounds, []variant{{run: func(context.Context) (cost, error) {
				start := time.Now()
				_, err := match.Choose(node, wanted, nil)
				return cost{wall: time.Since(start)}, err
			}}})
			if err != nil {
				return s, err
			}
			if d := r[0].median(); d > slowest {
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

// twice returns a node with two such boards, without NVLink between them.
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
	results, err := interleave(ctx, max(3, b.rounds/8), []variant{{name: "berth discover", run: func(ctx context.Context) (cost, error) {
		return timed(ctx, nil, "bin/berth", "discover", "--quiet")
	}}})
	return compare("discover", "Everything: NVML, sysfs, nodes, driver directory (already there), snapshot.", results), err
}

// memory reads the wrapper's peak from busybox time, whose own is small: the
// kernel counts the parent's pages for a child that hasn't called exec yet.
// busybox takes the kernel's number, which is in kB, for pages of 4 kB.
func (b *bench) memory(ctx context.Context) (section, error) {
	s := section{title: "memory", about: "Peak resident set of `berth-runtime create` with 8 GPUs, up to its exec of the runtime.", rows: [][]string{{"case", "peak", "goal"}}}
	bundle := filepath.Join(b.dir, "memory")
	if err := b.bundle(way{dir: bundle, change: annotated("8")}); err != nil {
		return s, err
	}
	conf, err := b.config("/bin/true")
	if err != nil {
		return s, err
	}
	cmd := exec.CommandContext(ctx, "busybox", "time", "-v", "bin/berth-runtime", "create", "--bundle", bundle, "memory")
	cmd.Env = append(os.Environ(), using(conf)...)
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
