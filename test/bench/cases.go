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

// variant is one way of doing the same thing.
type variant struct {
	name string
	goal string // what design asks of it, in words
	// run does it once and returns how long the part that counts took.
	run func(ctx context.Context) (time.Duration, error)
}

// result is a variant's times, sorted.
type result struct {
	variant
	times []time.Duration
}

func (r result) at(q float64) time.Duration {
	return r.times[min(len(r.times)-1, int(q*float64(len(r.times))))]
}

// interleave runs the variants by turns, so that whatever else the machine does
// hits all of them alike. The first round warms caches and isn't counted.
func interleave(ctx context.Context, rounds int, variants []variant) ([]result, error) {
	results := make([]result, len(variants))
	for i, v := range variants {
		results[i].variant = v
	}
	for round := range rounds + 1 {
		for k := range variants {
			i := (k + round) % len(variants)
			d, err := variants[i].run(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", variants[i].name, err)
			}
			if round > 0 {
				results[i].times = append(results[i].times, d)
			}
		}
	}
	for i := range results {
		slices.Sort(results[i].times)
	}
	return results, nil
}

// timed runs a command and says how long it took, from call to exit.
func timed(ctx context.Context, env []string, argv ...string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	// A file, not a pipe: a created container keeps its standard error open.
	errors, err := os.CreateTemp("", "bench")
	if err != nil {
		return 0, err
	}
	defer os.Remove(errors.Name())
	defer errors.Close()
	cmd.Stderr = errors
	start := time.Now()
	err = cmd.Run()
	d := time.Since(start)
	if err != nil {
		said, _ := os.ReadFile(errors.Name())
		return 0, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, said)
	}
	return d, nil
}

// section is one table of the result.
type section struct {
	title, about string
	rows         [][]string
}

// compare lays results out against the first of them.
func compare(title, about string, results []result) section {
	if len(results) == 0 { // measuring failed, and its caller says so
		return section{}
	}
	s := section{title: title, about: about, rows: [][]string{{"case", "median", "p95", "against " + results[0].name, "goal"}}}
	ground := results[0].at(0.5)
	for i, r := range results {
		against := "-"
		if i > 0 {
			against = fmt.Sprintf("%+.1f ms, %.2f×", ms(r.at(0.5)-ground), float64(r.at(0.5))/float64(ground))
		}
		s.rows = append(s.rows, []string{r.name, fmt.Sprintf("%.1f ms", ms(r.at(0.5))), fmt.Sprintf("%.1f ms", ms(r.at(0.95))), against, r.goal})
	}
	return s
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
