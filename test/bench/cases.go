package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// variant is one way of doing what the other variants do.
type variant struct {
	name string
	goal string // the design goal, in words
	// floor: no wrapper can be faster than this variant. Later variants are compared with it, too.
	floor bool
	// run does it once and returns the cost of the measured part.
	run func(ctx context.Context) (cost, error)
}

// cost is wall-clock time and processor time; other load on the machine changes the latter less.
type cost struct{ wall, cpu time.Duration }

// result is a variant's times, each kind sorted by itself.
type result struct {
	variant
	walls, cpus []time.Duration
}

// median of the times by the clock, by which variants are compared.
func (r result) median() time.Duration { return at(r.walls, 0.5) }

func at(times []time.Duration, q float64) time.Duration {
	return times[min(len(times)-1, int(q*float64(len(times))))]
}

// interleave runs the variants in turn, so that other load on the machine affects all of them
// alike. The first round warms caches and isn't counted.
func interleave(ctx context.Context, rounds int, variants []variant) ([]result, error) {
	results := make([]result, len(variants))
	for i, v := range variants {
		results[i].variant = v
	}
	for round := range rounds + 1 {
		for k := range variants {
			i := (k + round) % len(variants)
			c, err := variants[i].run(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", variants[i].name, err)
			}
			if round > 0 {
				results[i].walls = append(results[i].walls, c.wall)
				results[i].cpus = append(results[i].cpus, c.cpu)
			}
		}
	}
	for i := range results {
		slices.Sort(results[i].walls)
		slices.Sort(results[i].cpus)
	}
	return results, nil
}

// timed runs a command and returns its cost, from call to exit. Processor time includes children
// that have ended.
func timed(ctx context.Context, env []string, argv ...string) (cost, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	// A file, not a pipe: a created container keeps its standard error open.
	errors, err := os.CreateTemp("", "bench")
	if err != nil {
		return cost{}, err
	}
	defer os.Remove(errors.Name())
	defer errors.Close()
	cmd.Stderr = errors
	start := time.Now()
	err = cmd.Run()
	d := time.Since(start)
	if err != nil {
		said, _ := os.ReadFile(errors.Name())
		return cost{}, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, said)
	}
	return cost{d, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}, nil
}

// section is one table of the result.
type section struct {
	title, about string
	rows         [][]string
}

// compare makes a table of results, each compared with the first.
func compare(title, about string, results []result) section {
	if len(results) == 0 { // the measurement failed, and the caller reports it
		return section{}
	}
	s := section{title: title, about: about, rows: [][]string{{"case", "median", "p95", "CPU", "against " + results[0].name, "above the floor", "goal"}}}
	floor := -1
	for i, r := range results {
		against, above := "-", ""
		if i > 0 {
			against = difference(r, results[0])
		}
		if r.floor {
			floor, above = i, "-"
		} else if floor >= 0 {
			above = more(r, results[floor])
		}
		s.rows = append(s.rows, []string{r.name, show(r.median()), show(at(r.walls, 0.95)), show(at(r.cpus, 0.5)), against, above, r.goal})
	}
	if floor < 0 {
		for i, row := range s.rows {
			s.rows[i] = slices.Delete(row, 5, 6)
		}
	}
	return s
}

// difference of two medians, and their ratio.
func difference(r, ground result) string { return more(r, ground) + ", " + times(r, ground) }

// more is the difference of two medians.
func more(r, ground result) string {
	d := r.median() - ground.median()
	if d >= 0 {
		return "+" + show(d)
	}
	return show(d)
}

// times is the ratio of two medians.
func times(r, ground result) string {
	return fmt.Sprintf("%.2f×", float64(r.median())/float64(ground.median()))
}

func show(d time.Duration) string {
	if d.Abs() >= 2*time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f ms", ms(d))
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
