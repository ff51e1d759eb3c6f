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
		m.say(failure(err))
		return supervise.CodeFailed, err
	}
	if exit, err := m.Store.Exit(m.ID); err != nil || exit != nil || life == nil || life.BootID != m.bootID() {
		m.say("started " + m.ID) // there is nothing to watch over
		return 0, err
	}
	m.life, m.remount = *life, true
	m.life.Monitor = m.self
	if err := m.keepLease(); err != nil {
		m.say(failure(err))
		return supervise.CodeFailed, err
	}
	g.lookForViewer()
	whole, err := g.rejoin()
	if err != nil {
		m.say(failure(err))
		return supervise.CodeFailed, err
	}
	m.note(m.Store.WriteLife(m.ID, m.life))
	switch {
	case m.life.Ended == nil && whole:
		m.started()
		return g.finish(g.live())
	case m.life.Ended == nil && m.life.Restarts == 0:
		return supervise.CodeFailed, g.abort(errors.New("its monitor was killed before it had started"))
	}
	return g.goOn()
}

// lookForViewer has the gang end with the berth run that looks at it, which had a pipe to the
// monitor before.
func (g *gang) lookForViewer() {
	viewer := g.own.rec.Gang.Viewer
	if viewer.PID == 0 {
		return
	}
	g.leash, g.deaf = make(chan struct{}), true
	p, err := supervise.OpenProcess(g.own.Store.Proc, viewer.PID)
	if err != nil || !g.own.Store.Lives(viewer) {
		p.Close()
		close(g.leash)
		return
	}
	g.leash = p.Await().Done
	p.Close()
}

// goOn begins where a life had ended, or was cut off before it had begun: what was made of
// the next is of no use.
func (g *gang) goOn() (int, error) {
	m := g.own
	exit := tasks.Exit{
		Version: tasks.Version, Code: supervise.CodeUnknown, Unknown: true, Error: "its monitor was killed while it was started again",
		Started: m.life.Started, Finished: m.life.Started, Restarts: m.life.Restarts,
	}
	if m.life.Ended != nil {
		exit = *m.life.Ended
	}
	m.started()
	m.note(g.letGo())
	m.note(m.endAll())
	g.scatter(exit)
	// The kernel kills whatever is started right into a cgroup that was killed once.
	m.note(m.tree.RemoveAll(m.rec.Cgroup))
	if m.again(exit) && g.next(&exit) {
		return g.finish(g.live())
	}
	return g.finish(exit)
}

// rejoin finds the processes of a life. It isn't whole if a rank's container wasn't made or
// wasn't started.
func (g *gang) rejoin() (whole bool, err error) {
	m := g.own
	if m.findInit() {
		g.holder = m.init.PID
		m.note(g.reconnect())
	}
	whole = true
	for _, r := range g.ranks {
		r.there = direct // nobody serves calls yet
		found, err := g.rejoinRank(r)
		if err != nil {
			return false, err
		}
		whole = whole && found
		r.there = g.there
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
		r.note(r.Store.WriteLife(r.ID, r.life))
	}
	return found, nil
}

// rejoinGang is rejoin for a rank, whose container is never started by itself.
func (m *monitor) rejoinGang() (started bool) {
	m.known, m.life.Ended = m.life.Ended, nil // what such a life left wasn't removed yet
	return m.known != nil || !m.findInit() || !m.waits()
}
