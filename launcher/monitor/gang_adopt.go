package monitor

import (
	"errors"

	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// adopt goes on where a gang's monitor was killed.
func (g *gang) adopt() (int, error) {
	m := g.own
	life, err := m.Store.Life(m.ID)
	if err != nil {
		m.report(failureLine(err))
		return supervise.CodeFailed, err
	}
	if exit, err := m.Store.Exit(m.ID); err != nil || exit != nil || life == nil || life.BootID != m.bootID() {
		m.report("started " + m.ID) // there is nothing to watch over
		return 0, err
	}
	m.life, m.remount = *life, true
	m.life.Monitor = m.self
	if err := m.keepLease(); err != nil {
		m.report(failureLine(err))
		return supervise.CodeFailed, err
	}
	g.lookForViewer()
	whole, err := g.findRanks()
	if err != nil {
		m.report(failureLine(err))
		return supervise.CodeFailed, err
	}
	m.logError(m.Store.WriteLife(m.ID, m.life))
	switch {
	case m.life.Ended == nil && whole:
		m.reportStarted()
		return g.giveBack(g.superviseLives())
	case m.life.Ended == nil && m.life.Restarts == 0:
		return supervise.CodeFailed, g.removeUnstarted(errors.New("its monitor was killed before it had started"))
	}
	return g.continueAfterLife()
}

// lookForViewer has the gang end with the berth run that looks at it, which had a pipe to the
// monitor before.
func (g *gang) lookForViewer() {
	viewer := g.own.rec.Gang.Viewer
	if viewer.PID == 0 {
		return
	}
	g.viewerEnded, g.viewerUnreachable = make(chan struct{}), true
	p, err := supervise.OpenProcess(g.own.Store.Proc, viewer.PID)
	if err != nil || !g.own.Store.Lives(viewer) {
		p.Close()
		close(g.viewerEnded)
		return
	}
	g.viewerEnded = p.Await().Done
	p.Close()
}

// continueAfterLife begins where a life had ended, or was cut off before it had begun: what was made of
// the next is of no use.
func (g *gang) continueAfterLife() (int, error) {
	m := g.own
	exit := tasks.Exit{
		Version: tasks.Version, Code: supervise.CodeUnknown, Unknown: true, Error: "its monitor was killed while it was started again",
		Started: m.life.Started, Finished: m.life.Started, Restarts: m.life.Restarts,
	}
	if m.life.Ended != nil {
		exit = *m.life.Ended
	}
	m.reportStarted()
	m.logError(g.endHolder())
	m.logError(m.killProcesses())
	g.removeRemains(exit)
	// The kernel kills whatever is started right into a cgroup that was killed once.
	m.logError(m.tree.RemoveAll(m.rec.Cgroup))
	if m.willRestart(exit) && g.startNextLife(&exit) {
		return g.giveBack(g.superviseLives())
	}
	return g.giveBack(exit)
}

// findRanks finds the processes of a life. It isn't whole if a rank's container wasn't made or
// wasn't started.
func (g *gang) findRanks() (whole bool, err error) {
	m := g.own
	if m.findInit() {
		g.holder = m.init.PID
		m.logError(g.adoptNetwork())
	}
	whole = true
	for _, r := range g.ranks {
		r.onRootThread = callDirectly // nobody serves calls yet
		found, err := g.rejoinRank(r)
		if err != nil {
			return false, err
		}
		whole = whole && found
		r.onRootThread = g.onFirstThread
	}
	return whole, nil
}

// rejoinRank finds a rank's process, or how it has ended.
func (g *gang) rejoinRank(r *monitor) (found bool, err error) {
	life, err := r.Store.Life(r.ID)
	if err != nil || life == nil || life.Restarts != g.own.life.Restarts {
		return false, err
	}
	exit, err := r.Store.Exit(r.ID)
	if err != nil {
		return false, err
	}
	if r.life = *life; exit != nil {
		r.life.Ended = exit
		if exit.Code != 0 && g.failed == nil {
			g.failed = &ending{r, *exit}
		}
		return true, nil
	}
	r.life.Monitor = r.self
	if found = r.rejoinGang(); found {
		r.logError(r.Store.WriteLife(r.ID, r.life))
	}
	return found, nil
}

// rejoinGang finds the container of a rank again. A rank's container is never started alone.
func (m *monitor) rejoinGang() (started bool) {
	m.known, m.life.Ended = m.life.Ended, nil // what such a life left wasn't removed yet
	return m.known != nil || !m.findInit() || !m.waitsForStart()
}
