package monitor

import (
	"errors"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// startLife creates all containers and then starts all of them.
func (g *gang) startLife() error {
	defer raiseParallelism()()
	m := g.own
	m.reaper.forget()
	g.failed = nil
	defer g.sealRuntime()()
	if err := g.startHolder(); err != nil {
		return err
	}
	if err := g.makeAll(); err != nil {
		return err
	}
	m.life = tasks.Life{
		Init: m.init.Process, Started: time.Now().UTC(), Restarts: m.life.Restarts,
		BootID: m.rec.BootID, Monitor: m.self,
	}
	if err := errors.Join(m.Store.ReserveSpace(m.ID), m.Store.WriteLife(m.ID, m.life)); err != nil {
		return err
	}
	switch {
	case m.ending:
		return errors.New(m.reason)
	case !m.starterWaits():
		return errStarterGone
	}
	return g.startAll()
}

// makeAll creates all containers and connects the network. Both happen concurrently, because the
// network is mostly waiting for the kernel and is needed only when the containers start. A rank with
// NetworkFirst needs the network already when its container is created.
func (g *gang) makeAll() error {
	if slices.ContainsFunc(g.ranks, func(r *monitor) bool { return r.rec.Member.NetworkFirst }) {
		if err := g.connectNetwork(); err != nil {
			return err
		}
		return g.forEachRank((*monitor).makeContainer)
	}
	connected := make(chan error, 1)
	go func() { connected <- g.connectNetwork() }()
	err := g.forEachRank((*monitor).makeContainer)
	if e := <-connected; err == nil {
		err = e
	}
	return err
}

// startAll starts all containers. Those that start without the runtime are started first, one after
// the other: ranks that run compete for CPUs with the start of the others.
func (g *gang) startAll() error {
	begun := map[*monitor]bool{}
	for _, r := range g.ranks {
		var err error
		if begun[r], err = r.startWithoutRuntime(); err != nil {
			return r.wrapError(err)
		}
	}
	return g.forEachRank(func(r *monitor) error {
		if begun[r] {
			return nil
		}
		return r.startContainer()
	})
}

// forEachRank calls do for all ranks concurrently, and waits. It returns the error of the lowest rank
// that failed. Meanwhile it stops the ranks when the gang is stopped, times out, or has lost the
// process that waits for its start.
func (g *gang) forEachRank(do func(*monitor) error) error {
	errs := make([]error, len(g.ranks))
	var all sync.WaitGroup
	for i, r := range g.ranks {
		all.Go(func() {
			errs[i] = r.wrapError(do(r))
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	viewerEnded, look := g.viewerEnded, time.NewTicker(starterCheckInterval)
	defer look.Stop()
	var timeout <-chan time.Time
	if limit := time.Duration(g.own.rec.Timeout); limit > 0 {
		timeout = time.After(limit)
	}
	for {
		select {
		case call := <-g.calls:
			call()
		case <-g.own.server.signals: // signals go to ranks, not to the gang
		case reason := <-g.own.endRequests:
			g.stopRanks(reason)
		case <-viewerEnded:
			viewerEnded = nil
			g.viewerDied()
		case <-timeout:
			g.stopRanks(supervise.TimeoutReason(time.Duration(g.own.rec.Timeout)))
		case <-look.C:
			if !g.own.starterWaits() {
				g.stopRanks(errStarterGone.Error())
			}
		case <-done:
			for _, err := range errs {
				if err != nil {
					return err
				}
			}
			return nil
		}
	}
}

// starterCheckInterval is how often forEachRank checks whether the process that has started the gang
// still waits: ranks that run already can delay the start of others.
const starterCheckInterval = 200 * time.Millisecond

// sealRuntime seals the runtime's program once for all ranks: each time the kernel waits for all
// processors.
func (g *gang) sealRuntime() (done func()) {
	program := ociruntime.Seal(g.own.rec.Runtime)
	for _, r := range g.ranks {
		r.program = program
	}
	return func() {
		for _, r := range g.ranks {
			r.program = ociruntime.Program{}
		}
		program.Close()
	}
}

// raiseParallelism lets this process use several CPUs and collect garbage less often, until restore
// is called: MonitorEnvironment keeps monitors small, which would slow down the start of a gang.
func raiseParallelism() (restore func()) {
	const most, lazily = 4, 400
	procs, percent := runtime.GOMAXPROCS(min(runtime.NumCPU(), most)), debug.SetGCPercent(lazily)
	return func() {
		runtime.GOMAXPROCS(procs)
		debug.SetGCPercent(percent)
	}
}
