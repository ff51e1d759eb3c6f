package monitor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// next begins the next life of the whole gang, if there is to be one.
func (g *gang) next(e *tasks.Exit) bool {
	m := g.own
	for m.again(*e) {
		if !m.pause(e.Finished.Sub(e.Started)) {
			return false
		}
		m.life.Restarts++
		err := m.holds()
		if err != nil {
			e.Error = joined(e.Error, "it isn't started again: "+err.Error())
			return false
		}
		if err = g.renew(); err == nil {
			err = g.begin()
		}
		if err == nil {
			return true
		}
		now := time.Now().UTC()
		*e = tasks.Exit{Version: tasks.Version, Code: supervise.ExitCode(err), Error: err.Error(), Started: now, Finished: now, Restarts: m.life.Restarts}
		g.ended(*e)
		g.scatter(*e)
	}
	return false
}

// renew makes the ranks ready for another life.
func (g *gang) renew() error {
	for _, r := range g.ranks {
		r.life = tasks.Life{Restarts: g.own.life.Restarts}
		r.ending, r.reason = false, ""
		select {
		case <-r.asked: // it came too late for the life before
		default:
		}
		if err := os.Remove(r.in("exit.json")); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return g.mount()
}

// scatter removes the containers of ranks that nobody has seen the end of. What holds
// their namespaces is gone, and so are they.
func (g *gang) scatter(exit tasks.Exit) {
	for _, r := range g.ranks {
		r.there = direct
		r.init.Close()
		if r.life.Ended == nil {
			r.leave(exit)
		}
		r.there = g.there
	}
}

// abort removes a gang that has never started.
func (g *gang) abort(cause error) error {
	m := g.own
	err := g.letGo()
	for _, r := range g.ranks {
		r.there = direct
		failed := errors.Join(r.bury(), r.clear())
		if failed == nil {
			failed = r.remove()
		}
		r.server.end(supervise.CodeFailed)
		err = errors.Join(err, failed)
	}
	err = errors.Join(err, m.clear())
	if err == nil {
		err = errors.Join(g.unmount(), m.remove())
	}
	if err != nil {
		cause = fmt.Errorf("%w; and then: %w", cause, err)
	}
	m.say(failure(cause))
	return err
}

// finish gives back everything of a gang that has ended, as soon as whoever looks at it has
// seen all of its output.
func (g *gang) finish(exit tasks.Exit) (int, error) {
	m := g.own
	m.server.gangEnded(exit.Code)
	g.unleash()
	err := g.letGo()
	for _, r := range g.ranks {
		r.there = direct
		code := exit.Code
		if r.life.Ended != nil {
			code = r.life.Ended.Code
		}
		if m.rec.Remove {
			err = errors.Join(err, r.remove())
		}
		r.server.end(code)
	}
	if err = errors.Join(err, m.clear(), g.unmount()); err != nil {
		exit.Error = joined(exit.Error, err.Error())
	}
	if m.rec.Remove && err == nil {
		err = m.remove()
	} else {
		err = errors.Join(err, m.Store.WriteExit(m.ID, exit))
	}
	m.server.end(exit.Code)
	return exit.Code, err
}

// lastLook is how long whoever looks at a gang may take to read the last of its output.
const lastLook = 30 * time.Second

// unleash waits until nobody looks at the gang any more.
func (g *gang) unleash() {
	if g.leash == nil || g.deaf {
		return
	}
	limit := lastLook
	if g.own.Store.Stopped(g.own.ID) { // and somebody waits for the end
		limit = patience
	}
	select {
	case <-g.leash:
	case <-time.After(limit):
	}
}
