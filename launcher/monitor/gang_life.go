package monitor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// startNextLife starts the whole gang again if its restart policy says so.
func (g *gang) startNextLife(e *tasks.Exit) bool {
	start := func() error {
		if err := g.resetRanks(); err != nil {
			return err
		}
		if err := g.startLife(); err != nil {
			return err
		}
		g.keepRules()
		return nil
	}
	return g.own.retryStart(e, start, func() {
		g.recordEndOfLife(*e)
		g.recordUnfinishedRanks(*e)
	})
}

// resetRanks prepares the ranks for another life.
func (g *gang) resetRanks() error {
	for _, r := range g.ranks {
		r.life = tasks.Life{Restarts: g.own.life.Restarts}
		r.ending, r.reason = false, ""
		select {
		case <-r.endRequests: // a request that came after the end of the previous life
		default:
		}
		if err := os.Remove(r.path("exit.json")); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return g.mountShared()
}

// recordUnfinishedRanks records exit for all ranks whose end wasn't recorded, and removes their
// containers. The holder must have ended, so that they have no processes.
func (g *gang) recordUnfinishedRanks(exit tasks.Exit) {
	for _, r := range g.ranks {
		r.onRootThread = callDirectly
		r.init.Close()
		if r.life.Ended == nil {
			r.recordRankEnd(exit)
		}
		r.onRootThread = g.onFirstThread
	}
}

// removeUnstarted removes a gang that has never started.
func (g *gang) removeUnstarted(cause error) error {
	m := g.own
	err := g.endHolder()
	for _, r := range g.ranks {
		r.onRootThread = callDirectly
		failed := errors.Join(r.deleteContainer(), r.removeCgroupAndLease())
		if failed == nil {
			failed = r.removeTask()
		}
		r.server.shutDown(supervise.CodeFailed)
		err = errors.Join(err, failed)
	}
	err = errors.Join(err, m.removeCgroupAndLease())
	if err == nil {
		err = errors.Join(g.unmountShared(), m.removeOrRecordUnstarted(cause))
	}
	if err != nil {
		cause = fmt.Errorf("%w; and then: %w", cause, err)
	}
	m.report(failureLine(cause))
	return err
}

// finish releases everything of a gang that has ended, and records its end or removes it. It waits
// until the attached berth run has read all output.
func (g *gang) finish(exit tasks.Exit) (int, error) {
	m := g.own
	m.server.gangEnded(exit.Code)
	g.awaitViewer()
	err := g.endHolder()
	for _, r := range g.ranks {
		r.onRootThread = callDirectly
		code := exit.Code
		if r.life.Ended != nil {
			code = r.life.Ended.Code
		}
		if m.rec.Remove {
			err = errors.Join(err, r.removeTask())
		}
		r.server.shutDown(code)
	}
	if err = errors.Join(err, m.removeCgroupAndLease(), g.unmountShared()); err != nil {
		exit.Error = joinTexts(exit.Error, err.Error())
	}
	if m.rec.Remove && err == nil {
		err = m.removeTask()
	} else {
		err = errors.Join(err, m.Store.WriteExit(m.ID, exit))
	}
	m.server.shutDown(exit.Code)
	return exit.Code, err
}

// viewerTimeout is how long the attached berth run may take to read the rest of a gang's output.
const viewerTimeout = 30 * time.Second

// awaitViewer waits until the attached berth run has read all output or has ended.
func (g *gang) awaitViewer() {
	if g.viewerEnded == nil || g.viewerUnreachable {
		return
	}
	limit := viewerTimeout
	if g.own.Store.Stopped(g.own.ID) { // a berth stop waits for the end
		limit = killTimeout
	}
	select {
	case <-g.viewerEnded:
	case <-time.After(limit):
	}
}
