package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// benchmark measures acquire + release of one slice by many processes at once, without pauses.
// There are more slices than processes, so it measures the ledger, not the wait for devices.
func benchmark(ctx context.Context, o options) error {
	r, err := newRun(o, "bench")
	if err != nil {
		return err
	}
	defer r.clean()
	started := time.Now()
	if err := r.startWorkers(); err != nil {
		return err
	}
	for r.stats.released.Load() < int64(o.ops) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.ended:
		case <-time.After(20 * time.Millisecond):
		}
		if err := r.failure(); err != nil {
			return err
		}
	}
	took, s := time.Since(started), r.stats
	fmt.Fprintf(o.out, "acquire + release, %d processes at once on %d CPUs: p50 %v, p99 %v, %.0f pairs/s (%d pairs)\n",
		o.procs, cpus(), s.quantile(.5).Round(time.Microsecond), s.quantile(.99).Round(time.Microsecond),
		float64(s.released.Load())/took.Seconds(), s.released.Load())
	return nil
}

// measure is the loop of a worker of the benchmark.
func (w *worker) measure() error {
	wanted, err := request.Parse("1g.10gb")
	if err != nil {
		return err
	}
	ctx := context.Background()
	a := ledger.Ask{Owner: ledger.Owner{EntryPoint: "bench"}, Request: wanted, Inventory: w.inv, Wait: time.Minute}
	for w.stats.released.Load() < w.target {
		started := time.Now()
		lease, err := w.acquire(ctx, a)
		if err != nil {
			return err
		}
		if err := w.release(ctx, lease.ID); err != nil {
			return err
		}
		w.stats.time(time.Since(started))
	}
	return nil
}

func cpus() int { return runtime.NumCPU() }

// reaped counts the events of that kind; the oldest may have been rotated away.
func (r *run) reaped() (string, error) {
	files, err := filepath.Glob(r.scene.path("log", "events.log*"))
	if err != nil {
		return "", err
	}
	n, rotated := 0, ""
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		n += bytes.Count(b, []byte(`"event":"reaped"`))
		if strings.HasSuffix(f, ".4") {
			rotated = "at least "
		}
	}
	return fmt.Sprint(rotated, n), nil
}
