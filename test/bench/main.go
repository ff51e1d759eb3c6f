// Command bench measures what berth adds, as ratios against the plain runtimes in
// one run on one machine. It is a benchmark and never a test: nothing fails
// because it was slow.
//
// It runs inside the simulated dgx-h100, so that it can be repeated anywhere.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	write := flag.String("write", "", "also write the results to this file")
	rounds := flag.Int("rounds", 40, "how often each case is measured")
	inside := flag.Bool("inside", false, "run on this node instead of a simulated one")
	flag.Parse()
	run := outside
	if *inside {
		run = measure
	}
	if err := run(ctx, options{write: *write, rounds: *rounds}); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type options struct {
	write  string
	rounds int
}

// outside enters a simulated node with a pure cgroup v2 tree, as servers have it.
func outside(ctx context.Context, o options) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("containers need root: sudo make bench")
	}
	if err := os.MkdirAll(".cache/bench", 0o755); err != nil {
		return err
	}
	for _, name := range []string{"bench", "soak", "bench/empty"} {
		build := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", ".cache/bench/"+filepath.Base(name), "./test/"+name)
		build.Env, build.Stderr = append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
		if err := build.Run(); err != nil {
			return err
		}
	}
	return stream(ctx, "go", "run", "./test/simnode", "-profile", "dgx-h100", "-cgroup", "v2", "--",
		".cache/bench/bench", "-inside", "-write", o.write, "-rounds", fmt.Sprint(o.rounds))
}

func stream(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
