package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// worker is one process that takes and gives back leases until it is killed or
// the run is over.
type worker struct {
	scene  scene
	ledger *ledger.Ledger
	inv    gpu.Inventory
	stats  *stats
	target int64
	n      int // containers made so far
}

// work runs a worker. It ends by itself only if the promise was broken, or when
// the run's target is reached.
func work(dir, target string, do func(*worker) error) error {
	s, err := openScene(dir)
	if err != nil {
		return err
	}
	w := &worker{scene: s, inv: inventory(1), ledger: s.ledger(nil)}
	if w.target, err = strconv.ParseInt(target, 10, 64); err != nil {
		return err
	}
	if w.stats, err = openStats(s.path("stats")); err != nil {
		return err
	}
	return do(w)
}

// soak takes and gives back until the run's target is reached.
func (w *worker) soak() error {
	w.inv, w.ledger = inventory(2), w.scene.ledger(w.step)
	for w.stats.ops() < w.target {
		if err := w.runLease(); err != nil {
			return err
		}
	}
	return nil
}

// step is called at each point where the ledger is half changed.
func (w *worker) step(string) {
	if rand.IntN(4000) == 0 {
		w.stats.selfKills.Add(1)
		killSelf()
	}
}

// killSelf sends SIGKILL to itself: no deferred call, no flush, and only the kernel unlocks.
func killSelf() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // can't fail
	select {}
}

// randomRequest returns a random request. Most take one slice or GPU and don't wait; some want many, some
// wait, some name their devices.
func (w *worker) randomRequest() (ledger.Ask, error) {
	a := ledger.Ask{Inventory: w.inv, Owner: ledger.Owner{EntryPoint: "soak"}}
	words := "1g.10gb"
	switch r := rand.IntN(100); {
	case r < 30:
		words = "1"
	case r < 38:
		words = "2"
	case r < 42:
		words = "1g.10gb:5"
	case r < 44:
		words = "6"
	case r < 48:
		words = "device=" + strconv.Itoa(rand.IntN(gpus)) // a GPU in MIG mode takes all its slices
	case r < 50:
		words = fmt.Sprintf("%d:%d", 1+2*rand.IntN(gpus/2), rand.IntN(7))
	}
	if rand.IntN(10) == 0 {
		a.Wait = time.Duration(1+rand.IntN(50)) * time.Millisecond
		w.stats.waits.Add(1)
	}
	var err error
	a.Request, err = request.Parse(words)
	return a, err
}

// runLease takes one lease, uses it, and releases it or not.
func (w *worker) runLease() error {
	a, err := w.randomRequest()
	if err != nil {
		return err
	}
	if rand.IntN(25) == 0 {
		return w.container(a)
	}
	ctx := context.Background()
	started := time.Now()
	lease, err := w.acquire(ctx, a)
	if err != nil || lease.ID == "" {
		return err
	}
	took := time.Since(started)
	held, err := w.scene.hold(lease.Devices)
	if err != nil {
		return fmt.Errorf("lease %s: %w", lease.ID, err)
	}
	if rand.IntN(2000) == 0 {
		w.stats.selfKills.Add(1)
		killSelf() // between lease and start
	}
	if err := held.drop(); err != nil {
		return err
	}
	started = time.Now()
	if err := w.release(ctx, lease.ID); err != nil {
		return err
	}
	if a.Wait == 0 {
		w.stats.time(took + time.Since(started))
	}
	return nil
}

// acquire returns the zero Lease if others hold the devices.
func (w *worker) acquire(ctx context.Context, a ledger.Ask) (ledger.Lease, error) {
	lease, err := w.ledger.Acquire(ctx, a)
	if errors.Is(err, ledger.ErrBusy) {
		w.stats.refused.Add(1)
		return ledger.Lease{}, nil
	}
	if err == nil {
		w.stats.acquired.Add(1)
	}
	return lease, err
}

func (w *worker) release(ctx context.Context, id string) error {
	w.stats.released.Add(1)
	return w.ledger.Release(ctx, id)
}
