package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// ledger reports what the soak's benchmark measures with 1 and 64 processes.
func (b *bench) ledger(ctx context.Context) (section, error) {
	s := section{
		title: "acquire + release",
		about: "Processes that each take one of 112 slices and give it back, all on one ledger. In a burst, each has started but not used the ledger, then all come at the same moment, once, while so many other leases are held: what happens when a node's jobs start together. In a closed loop each goes on without a pause: the harshest load that a node can see, and no task behaves like that.",
		rows:  [][]string{{"processes", "result", "goal"}},
	}
	for _, p := range []struct {
		name, goal string
		args       []string
	}{
		{"1, closed loop", "", []string{"-bench", "-procs", "1", "-ops", "6400"}},
		{"64, one burst", "p99 ≤ 20 ms", []string{"-burst", "-procs", "64", "-ops", "1280"}},
		{"64, one burst, 36 leases held", "p99 ≤ 20 ms", []string{"-burst", "-procs", "64", "-ops", "1280", "-held", "36"}},
		{"64, closed loop", "", []string{"-bench", "-procs", "64", "-ops", "6400"}},
	} {
		out, err := exec.CommandContext(ctx, ".cache/bench/soak", p.args...).CombinedOutput()
		if err != nil {
			return s, fmt.Errorf("soak %s: %w: %s", strings.Join(p.args, " "), err, out)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		s.rows = append(s.rows, []string{p.name, lines[len(lines)-1], p.goal})
	}
	return s, nil
}
