package monitor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/isolation/network"
	"github.com/berth-gpu/berth/launcher/gang/ranks"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// gang supervises the ranks of a gang. Each rank has a monitor, which a goroutine runs as for a
// single task. own is the monitor of the gang's record; its init is the process that holds the ranks'
// namespaces.
//
// Work that needs the mount namespace of the first thread, such as starting runtimes, is sent to that
// thread by onFirstThread. The first thread executes these calls while it waits for the ranks.
type gang struct {
	own   *monitor
	ranks []*monitor
	calls chan func()
	// holder is the process whose namespaces the ranks share; 0 without one.
	holder int
	// viewerEnded is closed when the berth run of a gang in the foreground ends; nil for a detached gang.
	viewerEnded chan struct{}
	// viewerUnreachable means that the attached berth run can't confirm that it has shown all output:
	// it has no connection to a monitor that has adopted the gang.
	viewerUnreachable bool
	// ports is the lease of the gang's ports in a monitor that has adopted the gang. The first monitor
	// has inherited it from the launcher.
	ports *ranks.Leased
	// stores are the listening sockets of the gang's stores.
	stores []*os.File
	// network describes the gang's network, and stopNetwork ends its background services; nil without
	// an uplink.
	network     *network.Network
	stopNetwork func()
	// keepRules starts to maintain the host's rules. It is called when the ranks run and that was
	// reported.
	keepRules func()
	// failed is the rank that failed first, and its end; nil before.
	failed *ending
}

// ending is how a rank's life ended.
type ending struct {
	rank *monitor
	exit tasks.Exit
}

// runGang is Run for a gang.
func runGang(m *monitor) (int, error) {
	restore := raiseParallelism()
	g, err := openGang(m)
	if err != nil {
		m.report(failureLine(err))
		return supervise.CodeFailed, err
	}
	if m.Adopt {
		restore()
		return g.adopt()
	}
	if err := g.startLife(); err != nil {
		return supervise.ExitCode(err), g.removeUnstarted(err)
	}
	restore()
	m.reportStarted()
	g.keepRules()
	return g.finish(g.superviseLives())
}

// openGang prepares this process and opens a monitor for each rank.
func openGang(m *monitor) (*gang, error) {
	g := &gang{own: m, calls: make(chan func()), keepRules: func() {}}
	if err := m.becomeSubreaper(); err != nil {
		return nil, err
	}
	var err error
	if m.server, err = newServer(m.Store.Socket(m.ID)); err != nil {
		return nil, err
	}
	g.ranks = make([]*monitor, len(m.rec.Gang.Ranks))
	errs := make([]error, len(g.ranks))
	var all sync.WaitGroup
	for i, id := range m.rec.Gang.Ranks {
		all.Go(func() {
			if g.ranks[i], errs[i] = g.openRank(i, id); errs[i] != nil {
				errs[i] = fmt.Errorf("rank %d: %w", i, errs[i])
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if m.ViewerPipe != nil {
		g.viewerEnded = make(chan struct{})
		go func() {
			var one [1]byte
			_, _ = m.ViewerPipe.Read(one[:]) // returns when the other end is closed
			close(g.viewerEnded)
		}()
	}
	return g, nil
}

// openRank opens the monitor of a rank.
func (g *gang) openRank(i int, id string) (*monitor, error) {
	m := g.own
	o := Options{Store: m.Store, ID: id, Adopt: m.Adopt}
	if i < len(m.Locks) {
		o.Lock = m.Locks[i]
	}
	r, err := openTask(o)
	// A sweep of another process may hold the lock for a moment.
	for range 200 {
		if !m.Adopt || !errors.Is(err, lock.ErrBusy) {
			break
		}
		time.Sleep(10 * time.Millisecond)
		r, err = openTask(o)
	}
	if err != nil {
		return nil, err
	}
	r.reaper, r.endRequests = m.reaper, make(chan string, 1)
	r.onRootThread, r.watched = g.onFirstThread, m.rec.Gang.Viewer.PID != 0
	return r, r.openOutputs()
}

// onFirstThread makes the first thread call do, and waits for the call.
func (g *gang) onFirstThread(do func()) {
	done := make(chan struct{})
	g.calls <- func() { do(); close(done) }
	<-done
}

// callDirectly replaces onFirstThread for callers that are on the first thread.
func callDirectly(do func()) { do() }

// wrapError adds the rank's name to an error.
func (m *monitor) wrapError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", m.rec.Member.Name(), err)
}

// superviseLives supervises one life after the other, and returns the end of the last one.
func (g *gang) superviseLives() tasks.Exit {
	for {
		exit := g.superviseRanks()
		g.recordEndOfLife(exit)
		if !g.startNextLife(&exit) {
			return exit
		}
	}
}

// superviseRanks waits until all ranks have ended. When one fails, it stops the others.
func (g *gang) superviseRanks() tasks.Exit {
	m := g.own
	ends, gone := make(chan ending), make(chan struct{})
	left := 0
	for _, r := range g.ranks {
		if r.life.Ended != nil {
			continue
		}
		left++
		go func() {
			exit := r.superviseLife()
			ends <- ending{r, exit}
			r.recordRankEnd(exit)
			gone <- struct{}{}
		}()
	}
	var timeout <-chan time.Time
	if m.rec.Timeout > 0 {
		timeout = time.After(time.Duration(m.rec.Timeout) - m.init.Age())
	}
	if g.failed != nil {
		g.endOthers()
	}
	viewerEnded := g.viewerEnded
	for left > 0 {
		select {
		case e := <-ends:
			g.stopOthersAfter(e)
		case <-gone:
			left--
		case call := <-g.calls:
			call()
		case <-m.server.signals: // as in forEachRank
		case <-timeout:
			g.stopRanks(supervise.TimeoutReason(time.Duration(m.rec.Timeout)))
		case reason := <-m.endRequests:
			g.stopRanks(reason)
		case <-viewerEnded:
			viewerEnded = nil
			g.viewerDied()
		}
	}
	return g.exitOfLife()
}

// stopOthersAfter stops the other ranks if e is the first failure.
func (g *gang) stopOthersAfter(e ending) {
	if e.exit.Code == 0 || g.failed != nil {
		return
	}
	g.failed = &e
	g.endOthers()
}

func (g *gang) endOthers() {
	for _, r := range g.ranks {
		if r != g.failed.rank {
			r.requestEnd(fmt.Sprintf("%s ended with %d", g.failed.rank.rec.Member.Name(), g.failed.exit.Code))
		}
	}
}

// stopRanks stops all ranks. No other life follows.
func (g *gang) stopRanks(reason string) {
	g.own.ending, g.own.reason = true, reason
	for _, r := range g.ranks {
		r.requestEnd(reason)
	}
}

// viewerDied stops a gang in the foreground whose berth run has ended.
func (g *gang) viewerDied() {
	for _, r := range g.ranks {
		r.out.viewerGone.Store(true)
	}
	g.stopRanks("its berth run was killed")
}

// recordRankEnd logs a rank's remaining output, removes its container, kills processes that are left
// in its cgroup, and records its end.
func (m *monitor) recordRankEnd(exit tasks.Exit) {
	m.recordEndOfLife(exit)
	err := m.removeCgroupAndLease()
	if err == nil && m.runtime.Knows(m.ID) { // left by a runtime that was killed
		err = os.RemoveAll(filepath.Join(m.runtime.Root, m.ID))
	}
	if err != nil {
		exit.Error = joinTexts(exit.Error, err.Error())
	}
	m.logError(m.Store.WriteExit(m.ID, exit))
}

// exitOfLife returns the end of a life of the gang, with the code of the rank that failed first.
func (g *gang) exitOfLife() tasks.Exit {
	m := g.own
	e := tasks.Exit{
		Version: tasks.Version, Error: m.reason,
		Started: m.life.Started, Finished: time.Now().UTC(), Restarts: m.life.Restarts,
	}
	if g.failed == nil {
		return e
	}
	first := g.failed.exit
	e.Code, e.Signal, e.OOM, e.Unknown = first.Code, first.Signal, first.OOM, first.Unknown
	switch {
	case e.Error != "" || m.Store.Stopped(m.ID):
	case g.holder > 0 && !m.Store.Lives(m.life.Init):
		e.Error = "the process that holds its namespaces was killed"
	default:
		e.Error = g.failed.rank.rec.Member.Name() + " failed first"
		if first.Error != "" {
			e.Error += ": " + first.Error
		}
	}
	return e
}

// recordEndOfLife records the end of a life of the gang, and removes its namespaces and network.
func (g *gang) recordEndOfLife(exit tasks.Exit) {
	m := g.own
	m.life.Ended = &exit
	m.logError(m.Store.WriteLife(m.ID, m.life))
	m.logError(g.endHolder())
}
