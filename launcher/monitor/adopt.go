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

// adopt takes over a task whose monitor was killed, or a task in the foreground whose launcher was
// killed.
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
		m.report("started " + m.ID) // nothing is left to supervise
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
		// The monitor may have been killed while the next life was being started: its container and
		// runtime are removed. The life is written first, so that other processes see this monitor.
		m.logError(m.Store.WriteLife(m.ID, m.life))
		m.logError(m.killProcesses())
		m.logError(m.deleteContainer())
		// After a write to cgroup.kill the kernel kills every process that is started right into the cgroup.
		m.logError(m.cgroups.RemoveAll(m.rec.Cgroup))
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
	// Without this record every berth command would start another monitor.
	if err := m.Store.WriteLife(m.ID, m.life); err != nil {
		m.report(failureLine(err))
		return supervise.CodeFailed, err
	}
	m.reportStarted()
	return m.finish(m.superviseLives())
}

// continueAfterLife restarts or ends a task whose life has ended. If no other life follows, the
// process that started this monitor gets its report only after the task's end was recorded or has
// failed to be; otherwise it would start another monitor.
func (m *monitor) continueAfterLife(exit tasks.Exit) (int, error) {
	if m.willRestart(exit) {
		m.reportStarted()
		if !m.startNextLife(&exit) {
			return m.finish(exit)
		}
		return m.finish(m.superviseLives())
	}
	code, err := m.finish(exit)
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

// keepLease binds the lease to this process. A lease that was released meanwhile is not an error: the
// task keeps running without it, and isn't restarted.
func (m *monitor) keepLease() error {
	if err := m.bindLease(); err != nil && !errors.Is(err, ledger.ErrNotFound) {
		return err
	}
	return nil
}

// findContainer opens the container's init. A container that was created and not started is started,
// except in the task's first life, where findContainer returns false. In the foreground the runtime
// itself starts the container that it has created.
func (m *monitor) findContainer() (bool, error) {
	if !m.findInit() || !m.rec.Detached || !m.waitsForStart() {
		return true, nil
	}
	if m.life.Restarts == 0 {
		return false, nil
	}
	return true, m.startContainer()
}

// findInit opens the init of a life that another monitor has started. It returns false if the init
// has ended.
func (m *monitor) findInit() bool {
	p, err := supervise.OpenProcess(m.Store.Proc, m.life.Init.PID)
	if err != nil || !m.Store.Lives(m.life.Init) {
		p.Close()
		m.init, m.initEnd = nil, supervise.NewEnding()
		m.initEnd.Set(0, process.ErrUnknownExit)
		return false
	}
	p.SendDenied = m.killDenied
	m.init, m.initEnd = p, p.Await()
	return true
}

// waitsForStart reports whether the container was created and not started.
func (m *monitor) waitsForStart() bool {
	out, err := m.callRuntime("state", m.ID)
	var state struct{ Status string }
	return err == nil && json.Unmarshal([]byte(out), &state) == nil && state.Status == "created"
}

// remountRoot mounts the task's root again: it was mounted only in the mount namespace of the
// previous monitor.
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

// mountRoot mounts the task's root. The calling thread must have its own mount namespace.
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
