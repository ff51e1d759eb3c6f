package monitor

import (
	"encoding/json"
	"errors"
	"os"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/overlay"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// adopt goes on where a monitor was killed, or the launcher of a task in the foreground.
func (m *monitor) adopt() (int, error) {
	life, err := m.Store.Life(m.ID)
	if err == nil && life == nil {
		life = m.Store.LifeByPIDFile(m.rec)
	}
	if err != nil {
		m.report(failureLine(err))
		return supervise.CodeFailed, err
	}
	if exit, err := m.Store.Exit(m.ID); err != nil || exit != nil || life == nil || life.BootID != m.bootID() {
		m.report("started " + m.ID) // there is nothing to watch over
		return 0, err
	}
	m.life = *life
	m.life.Monitor = m.self
	m.remount = true
	if err := m.keepLease(); err != nil {
		m.report(failureLine(err))
		return supervise.CodeFailed, err
	}
	if m.life.Ended != nil {
		// What was made of the next life, if anything, is of no use, nor is a runtime that
		// is still making it. Whoever looks meanwhile has to see that there is a monitor.
		m.logError(m.Store.WriteLife(m.ID, m.life))
		m.logError(m.killProcesses())
		m.logError(m.deleteContainer())
		// The kernel kills whatever is started right into a cgroup that was killed once.
		m.logError(m.tree.RemoveAll(m.rec.Cgroup))
		return m.continueAfterLife(*m.life.Ended)
	}
	if begun, err := m.findContainer(); err != nil || !begun {
		return supervise.CodeFailed, m.removeUnstarted(errors.Join(err, errors.New("its monitor was killed before it had started")))
	}
	if m.initEnd.HasEnded() {
		exit := m.superviseLife()
		m.recordEndOfLife(exit)
		return m.continueAfterLife(exit)
	}
	// A monitor that can't record itself would be started again and again.
	if err := m.Store.WriteLife(m.ID, m.life); err != nil {
		m.report(failureLine(err))
		return supervise.CodeFailed, err
	}
	m.reportStarted()
	return m.giveBack(m.superviseLives())
}

// continueAfterLife goes on after a life that has ended. If no other life follows, the process
// that started this monitor gets its report only when the end was recorded, or why it could not
// be; otherwise it would start another monitor.
func (m *monitor) continueAfterLife(exit tasks.Exit) (int, error) {
	if m.willRestart(exit) {
		m.reportStarted()
		if !m.startNextLife(&exit) {
			return m.giveBack(exit)
		}
		return m.giveBack(m.superviseLives())
	}
	code, err := m.giveBack(exit)
	if err != nil {
		if known, e := m.Store.Exit(m.ID); known == nil {
			m.report(failureLine(errors.Join(err, e)))
			return code, err
		}
	}
	m.report("started " + m.ID)
	return code, err
}

func (m *monitor) bootID() string {
	id, err := m.Store.BootID()
	if err != nil {
		m.logError(err)
	}
	return id
}

// keepLease makes this process the lease's proof of life beside the task's cgroup. One
// that is gone was ended by somebody; the task goes on without a right to it, and isn't
// started again.
func (m *monitor) keepLease() error {
	if err := m.bindLease(); err != nil && !errors.Is(err, ledger.ErrNotFound) {
		return err
	}
	return nil
}

// findContainer finds the container's init. It is false if the container was made and never
// started, in the task's first life. The runtime of a task in the foreground starts what it
// has made by itself.
func (m *monitor) findContainer() (bool, error) {
	if !m.findInit() || !m.rec.Detached || !m.waitsForStart() {
		return true, nil
	}
	if m.life.Restarts == 0 {
		return false, nil
	}
	return true, m.startContainer()
}

// findInit opens the init of a life that another monitor has begun. It is false if that has
// ended.
func (m *monitor) findInit() bool {
	p, err := supervise.OpenProcess(m.Store.Proc, m.life.Init.PID)
	if err != nil || !m.Store.Lives(m.life.Init) {
		p.Close()
		m.init, m.initEnd = nil, supervise.NewEnding()
		m.initEnd.Set(0, process.ErrUnknownExit)
		return false
	}
	m.init, m.initEnd = p, p.Await()
	return true
}

// waitsForStart says whether the container was made and waits for its start.
func (m *monitor) waitsForStart() bool {
	out, err := m.callRuntime("state", m.ID)
	var state struct{ Status string }
	return err == nil && json.Unmarshal([]byte(out), &state) == nil && state.Status == "created"
}

// remountRoot mounts the task's root again: the mount namespace of the monitor before was the
// last that had it.
func (m *monitor) remountRoot() error {
	if !m.remount || len(m.rec.Layers) == 0 {
		return nil
	}
	if err := overlay.UnshareMounts(); err != nil {
		return err
	}
	m.remount = false
	return m.mountRoot()
}

// mountRoot needs a mount namespace of this process's own.
func (m *monitor) mountRoot() error {
	target := m.path("rootfs")
	if m.rec.Writable {
		return overlay.BindMount(target, m.rec.Layers[0])
	}
	// The kernel refuses the work directory of an overlay that was never unmounted.
	if err := errors.Join(os.RemoveAll(m.path("work")), os.Mkdir(m.path("work"), 0o700)); err != nil {
		return err
	}
	return overlay.Mount(target, overlay.Layers{Lower: m.rec.Layers, Upper: m.path("upper"), Work: m.path("work")})
}
