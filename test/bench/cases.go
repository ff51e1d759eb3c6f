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
	// floor: the variant costs what no wrapper can spare. Later ones are compared with it, too.
	floor bool
	// run does it once and returns what the part that counts took.
	run func(ctx context.Context) (cost, error)
}

// cost is what something took: by the clock, and of processors' time, which other
// load on the machine changes less.
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

// timed runs a command and says what it took, from call to exit. Processor time is
// that of the command and of its children that have ended.
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

// compare lays results out against the first of them.
func compare(title, about string, results []result) section {
	if len(results) == 0 { // measuring failed, and its caller says so
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
