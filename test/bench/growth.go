package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
)

const aboutGrowth = "`crun create` on a node of %d %s. Each further one is what a row takes beyond the first, divided by the number of devices beyond one: it would rise from row to row if the cost grew faster than the number. crun alone is the part of berth-runtime's that no berth can spare: a plain crun with the spec that berth wrote."

// growth measures the time of a container's start by the number of its devices: whole GPUs, then
// MIG slices. It cuts the node's GPUs into slices.
func (b *bench) growth(ctx context.Context) ([]section, error) {
	whole, err := b.grow(ctx, "GPUs", "%d", []int{1, 2, 4, 8, 16})
	if err != nil {
		return nil, err
	}
	for i := range b.gpus {
		_, err := timed(ctx, nil, filepath.Join(built, "simnode"), "ctl", "mig", strconv.Itoa(i),
			"1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb")
		if err != nil {
			return nil, err
		}
	}
	if _, err := timed(ctx, nil, "bin/berth", "discover", "--quiet"); err != nil {
		return nil, err
	}
	slices, err := b.grow(ctx, "MIG slices", "1g.10gb:%d", []int{1, 7, 14, 28, 56, 112})
	return append(whole, slices...), err
}

func (b *bench) grow(ctx context.Context, what, request string, counts []int) ([]section, error) {
	conf, err := b.config("crun")
	if err != nil {
		return nil, err
	}
	var cases []way
	for _, n := range counts {
		cases = append(cases, b.asking(conf, fmt.Sprintf(request, n), ""))
	}
	for _, n := range counts {
		cases = append(cases, b.hooked(conf, "crun", fmt.Sprintf(request, n), ""))
	}
	for _, n := range counts {
		spec, err := b.rewritten(ctx, "crun", fmt.Sprintf(request, n), "compute,utility")
		if err != nil {
			return nil, err
		}
		cases = append(cases, way{name: "plain crun", runtime: []string{"crun"}, change: func(s *specs.Spec) {
			for _, st := range steps() {
				st.apply(s, spec)
			}
		}})
	}
	results, err := b.run(ctx, "grow"+strconv.Itoa(len(counts)), cases)
	if err != nil {
		return nil, err
	}
	most := counts[len(counts)-1]
	var all []section
	for i, entryPoint := range []string{"berth-runtime", "berth-hook", "crun alone"} {
		title := fmt.Sprintf("1 to %d %s, %s", most, what, entryPoint)
		all = append(all, perDevice(title, fmt.Sprintf(aboutGrowth, most, what), counts, results[i*len(counts):(i+1)*len(counts)]))
	}
	return all, nil
}

// perDevice makes a table of the cost of each further device.
func perDevice(title, about string, counts []int, results []result) section {
	s := section{title: title, about: about, rows: [][]string{{"devices", "median", "p95", "CPU", "each further one", "CPU of it", "goal"}}}
	for i, r := range results {
		row := []string{strconv.Itoa(counts[i]), show(r.median()), show(at(r.walls, 0.95)), show(at(r.cpus, 0.5)), "-", "-", ""}
		if i > 0 {
			further := float64(counts[i] - counts[0])
			row[4] = fmt.Sprintf("%.3f ms", ms(r.median()-results[0].median())/further)
			row[5] = fmt.Sprintf("%.3f ms", ms(at(r.cpus, 0.5)-at(results[0].cpus, 0.5))/further)
			row[6] = "≤ 0.15 ms"
		}
		s.rows = append(s.rows, row)
	}
	return s
}
