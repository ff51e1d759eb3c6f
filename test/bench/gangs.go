package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// ranks is the number of containers of a gang.
const ranks = 8

// gangs compares a gang with as many containers of a plain runtime that are started at once.
func (b *bench) gangs(ctx context.Context) (section, error) {
	conf, err := b.config("crun")
	if err != nil {
		return section{}, err
	}
	var bundles []string
	for i := range ranks {
		bundle := filepath.Join(b.dir, fmt.Sprintf("rank%d", i))
		sleeps := func(s *specs.Spec) { s.Process.Args = []string{"/bin/sleep", "1000"} }
		if err := b.bundle(way{dir: bundle, change: sleeps}); err != nil {
			return section{}, err
		}
		bundles = append(bundles, bundle)
	}
	gang := func(words ...string) func(context.Context) (cost, error) {
		return func(ctx context.Context) (cost, error) { return b.gang(ctx, conf, words) }
	}
	results, err := interleave(ctx, b.rounds, []variant{
		{name: fmt.Sprintf("%d × crun run", ranks), run: func(ctx context.Context) (cost, error) { return b.together(ctx, bundles) }},
		{name: "berth run -n 8, no network", run: gang("--network", "none")},
		{name: "berth run -n 8", run: gang()},
		{name: "berth run -n 8, a GPU each", goal: "≤ 1.6×", run: gang("--gpus-per-rank", "1")},
	})
	return compare("gangs", "Eight containers, from the call until all have started. crun's are started side by side, with a network namespace each and on a root that is there; berth makes their roots, gives them a network with a way out, and starts none before all are made. CPU is that of the processes that are called: the other half of berth run -d isn't in it.", results), err
}

// together starts all containers at once.
func (b *bench) together(ctx context.Context, bundles []string) (cost, error) {
	b.next++
	errs := make([]error, len(bundles))
	costs := make([]cost, len(bundles))
	var all sync.WaitGroup
	start := time.Now()
	for i, bundle := range bundles {
		all.Go(func() {
			costs[i], errs[i] = timed(ctx, nil, "crun", "run", "--detach", "--bundle", bundle, fmt.Sprintf("gang%d-%d", b.next, i))
		})
	}
	all.Wait()
	sum := cost{wall: time.Since(start)}
	for i, err := range errs {
		if err != nil {
			return sum, err
		}
		sum.cpu += costs[i].cpu
		if _, err := timed(ctx, nil, "crun", "delete", "--force", fmt.Sprintf("gang%d-%d", b.next, i)); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// gang starts one, and removes it again.
func (b *bench) gang(ctx context.Context, conf string, words []string) (cost, error) {
	b.next++
	name := fmt.Sprintf("gang%d", b.next)
	argv := append([]string{"bin/berth", "run", "-d", "--name", name, "-n", fmt.Sprint(ranks)}, words...)
	c, err := timed(ctx, using(conf), append(argv, b.root, "/bin/sleep", "1000")...)
	if err != nil {
		return c, err
	}
	rm := exec.CommandContext(ctx, "bin/berth", "rm", "-f", name)
	rm.Env = append(rm.Environ(), using(conf)...)
	if out, err := rm.CombinedOutput(); err != nil {
		return c, fmt.Errorf("berth rm: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return c, nil
}
