package monitor

import (
	"errors"

	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// adopt takes over a gang whose monitor was killed.
func (g *gang) adopt() (int, error) {
	m := g.own
	life, err := m.Store.Life(m.ID)
	if err != nil {
		m.report(failureLine(err))
		return supervise.CodeFailed, err
	}
	if exit, err := m.Store.Exit(m.ID); err != nil || exit != nil || life == nil || life.BootID != m.bootID() {
		m.report("started " + m.ID) // nothing is left to supervise
		return 0, err
	}
	m.life, m.remount = *life, true
	m.life.Monitor = m.self
	if err := m.keepLease(); err != nil {
		m.report(failureLine(err))
		return supervise.CodeFailed, err
	}
	g.watchViewer()
	complete, err := g.findRanks()
	if err != nil {
		m.report(failureLine(err))
		return supervise.CodeFailed, err
	}
	m.logError(m.Store.WriteLife(m.ID, m.life))
	switch {
	case m.life.Ended == nil && complete:
		m.reportStarted()
		return g.finish(g.superviseLives())
	case m.life.Ended == nil && m.life.Restarts == 0:
		return supervise.CodeFailed, g.removeUnstarted(errors.New("its monitor was killed before it had started"))
	}
	return g.continueAfterLife()
}

// watchViewer makes the gang end with the berth run that is attached to it. The pipe between them
// has ended with the previous monitor.
func (g *gang) watchViewer() {
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

// continueAfterLife restarts or ends a gang whose life has ended, or whose next life wasn't completely
// started. What was created for the next life is removed.
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
	g.recordUnfinishedRanks(exit)
	// After a write to cgroup.kill the kernel kills every process that is started right into the cgroup.
	m.logError(m.cgroups.RemoveAll(m.rec.Cgroup))
	if m.willRestart(exit) && g.startNextLife(&exit) {
		return g.finish(g.superviseLives())
	}
	return g.finish(exit)
}

// findRanks finds the processes of a life. complete is false if the container of a rank wasn't
// created or wasn't started.
func (g *gang) findRanks() (complete bool, err error) {
	m := g.own
	if m.findInit() {
		g.holder = m.init.PID
		m.logError(g.adoptNetwork())
	}
	complete = true
	for _, r := range g.ranks {
		r.onRootThread = callDirectly // this is the first thread
		found, err := g.rejoinRank(r)
		if err != nil {
			return false, err
		}
		complete = complete && found
		r.onRootThread = g.onFirstThread
	}
	return complete, nil
}

// rejoinRank finds a rank's process or its end. found is false if its container wasn't created or
// wasn't started in the gang's current life.
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
	if found = r.findStartedContainer(); found {
		r.logError(r.Store.WriteLife(r.ID, r.life))
	}
	return found, nil
}

// findStartedContainer opens the container's init, and reports whether the container was started.
// Unlike findContainer it starts nothing: the ranks of a gang start together.
func (m *monitor) findStartedContainer() (started bool) {
	m.recordedExit, m.life.Ended = m.life.Ended, nil // superviseLife returns it, and removes what is left
	return m.recordedExit != nil || !m.findInit() || !m.waitsForStart()
}
