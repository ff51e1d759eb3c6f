package monitor

import (
	"errors"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// adopt goes on where a gang's monitor was killed.
func (g *gang) adopt() (int, error) {
	m := g.own
	life, err := m.Store.Life(m.ID)
	if err != nil {
		m.say(failure(err))
		return codeFailed, err
	}
	if exit, err := m.Store.Exit(m.ID); err != nil || exit != nil || life == nil || life.BootID != m.bootID() {
		m.say("started " + m.ID) // there is nothing to watch over
		return 0, err
	}
	m.life, m.remount = *life, true
	m.life.Monitor = m.self
	if err := m.keepLease(); err != nil {
		m.say(failure(err))
		return codeFailed, err
	}
	g.lookForViewer()
	whole, err := g.rejoin()
	if err != nil {
		m.say(failure(err))
		return codeFailed, err
	}
	m.note(m.Store.WriteLife(m.ID, m.life))
	switch {
	case m.life.Ended == nil && whole:
		m.started()
		return g.finish(g.live())
	case m.life.Ended == nil && m.life.Restarts == 0:
		return codeFailed, g.abort(errors.New("its monitor was killed before it had started"))
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
	i, err := openInit(g.own.Store.Proc, viewer.PID)
	if err != nil || !g.own.Store.Lives(viewer) {
		i.close()
		close(g.leash)
		return
	}
	go func() {
		defer close(g.leash)
		defer i.close()
		_, _ = process.Wait(procOf(g.own.Store.Proc), int(i.pidfd.Fd()), i.PID) // how it ended doesn't matter
	}()
}

// goOn begins where a life had ended, or was cut off before it had begun: what was made of
// the next is of no use.
func (g *gang) goOn() (int, error) {
	m := g.own
	exit := tasks.Exit{
		Version: tasks.Version, Code: codeUnknown, Unknown: true, Error: "its monitor was killed while it was started again",
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
	if i, err := openInit(m.Store.Proc, m.life.Init.PID); err == nil {
		if m.Store.Lives(m.life.Init) {
			m.init, g.holder = i, i.PID
			m.note(g.reconnect())
		} else {
			i.close()
		}
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
	m.init = initProcess{Process: m.life.Init, ended: make(chan foreignEnd, 1)}
	if known := m.life.Ended; known != nil { // what it left wasn't removed yet
		m.life.Ended = nil
		m.init.ended <- foreignEnd{known: known}
		return true
	}
	i, err := openInit(m.Store.Proc, m.life.Init.PID)
	if err != nil || !m.Store.Lives(m.life.Init) {
		i.close()
		m.init.ended <- foreignEnd{err: process.ErrUnknownExit}
		return true
	}
	m.init.pidfd = i.pidfd
	if m.waits() {
		return false
	}
	go m.init.await(procOf(m.Store.Proc))
	return true
}
