package monitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// startLife makes the container and starts it. Between the two its life is recorded, so
// that no container runs of which nobody knows.
func (m *monitor) startLife() error {
	m.reaper.forget()
	if err := m.makeContainer(); err != nil {
		return err
	}
	if !m.isWanted() {
		return errUnwanted
	}
	return m.startContainer()
}

var errUnwanted = errors.New("who asked for the task is gone")

// makeContainer has the container made, and records its life.
func (m *monitor) makeContainer() error {
	if err := m.createContainer(); err != nil {
		return err
	}
	pid, err := smallfile.Int(m.path("bundle/pid"))
	if err != nil {
		return err
	}
	if m.init, err = supervise.OpenProcess(m.Store.Proc, pid); err != nil {
		return err
	}
	m.initEnd, m.known = m.reaper.await(pid), nil
	if err := setCPUs(m.rec.CPUs, cmp.Or(m.Store.Proc, "/proc"), pid); err != nil {
		return err
	}
	m.life = tasks.Life{
		Init: m.init.Process, Started: time.Now().UTC(), Restarts: m.life.Restarts,
		BootID: m.rec.BootID, Monitor: m.self,
	}
	return errors.Join(m.Store.ReserveSpace(m.ID), m.Store.WriteLife(m.ID, m.life))
}

// startContainer starts the container that makeContainer has created. It returns
// errDied if the container's init was killed meanwhile; waitRuntime ends a crun that would then wait
// for ever.
func (m *monitor) startContainer() error {
	if begun, err := m.startWithoutRuntime(); begun || err != nil {
		return err
	}
	out, err := m.callRuntime("start", m.ID)
	switch {
	case err == nil:
		return nil
	case m.initDied():
		return errDied
	}
	return fmt.Errorf("%w: %s", m.runtime.Failed(err), out)
}

// startWithoutRuntime is startContainer without a runtime's process (Runtime.Begin). It returns
// false if the runtime has to be called.
func (m *monitor) startWithoutRuntime() (begun bool, err error) {
	if m.initDied() {
		return false, errDied
	}
	return m.runtime.StartWithoutRuntime(m.ID, m.path("bundle/config.json"))
}

var errDied = errors.New("it was killed before it had started")

// initDied says whether the container's init has died.
func (m *monitor) initDied() bool {
	m.reaper.collect()
	return m.initEnd.HasEnded()
}

// createContainer has the runtime make the container, in the task's cgroup from its first
// instruction.
func (m *monitor) createContainer() error {
	// runc creates bundle/.pid exclusively and renames it to bundle/pid: what a killed runc has
	// left of it would keep every other from making the container.
	for _, stale := range []string{"bundle/pid", "bundle/.pid", "bundle/log"} {
		if err := os.Remove(m.path(stale)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := m.tree.CreateTask(m.rec.Cgroup); err != nil {
		return err
	}
	words := []string{"create", "--bundle", m.path("bundle"), "--pid-file", m.path("bundle/pid")}
	var console *ociruntime.Console
	if m.rec.Terminal {
		var err error
		if console, err = ociruntime.NewConsole(m.path("bundle")); err != nil {
			return err
		}
		defer console.Close()
		words = append(words, "--console-socket", console.Path)
	}
	cmd := m.runtime.Command(append(words, m.ID)...)
	stdio, err := m.openStdio()
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdio[0], stdio[1], stdio[2]
	cmd, err = m.startRuntime(cmd, func(cmd *exec.Cmd) error { return m.tree.StartRuntime(cmd, m.rec.Cgroup) })
	for _, f := range stdio {
		f.Close() // the runtime has its own
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", m.runtime.Path, err)
	}
	if err := m.waitRuntime(cmd, "create"); err != nil {
		return m.runtime.Failed(err)
	}
	if console != nil {
		return m.receiveTerminal(console)
	}
	return nil
}

// openStdio opens the container's standard files. The container holds both ends of its pipes:
// writes don't fail with EPIPE, and buffered output survives the death of the monitor.
func (m *monitor) openStdio() (files [3]*os.File, err error) {
	names := [3]string{os.DevNull, os.DevNull, os.DevNull}
	if !m.rec.Terminal {
		names[1], names[2] = m.path("stdout"), m.path("stderr")
		if m.rec.Interactive {
			names[0] = m.path("stdin")
		}
	}
	for i, name := range names {
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			return files, fmt.Errorf("open %s: %w", name, err)
		}
		files[i] = os.NewFile(uintptr(fd), name)
	}
	return files, nil
}

// sendSignal does to the container's init what the signal would do outside a container.
func (m *monitor) sendSignal(sig syscall.Signal) bool {
	if m.init != nil {
		m.logError(m.init.SendAsInit(sig))
	}
	return true
}

// superviseLife supervises the container's init until it has ended.
func (m *monitor) superviseLife() tasks.Exit {
	if m.known != nil {
		return *m.known
	}
	why := supervise.Life{
		Terms: supervise.TermsOf(m.rec, m.init.Age()),
		Ended: m.initEnd.Done, Send: m.sendSignal, Signals: m.server.signals, Stop: m.endRequests,
	}.Wait()
	if why != "" {
		m.ending, m.reason = true, why
	}
	return m.exitOfLife()
}

// exitOfLife is how a life ended.
func (m *monitor) exitOfLife() tasks.Exit {
	m.init.Close()
	code, sig := m.init.ExitCode(m.initEnd)
	e := tasks.Exit{
		Version: tasks.Version, Code: code, Signal: int(sig), Error: m.reason,
		Started: m.life.Started, Finished: time.Now().UTC(), Restarts: m.life.Restarts,
	}
	if err := m.initEnd.Err; err != nil {
		e.Unknown, e.Error = true, joinTexts(m.reason, "its monitor was killed, and "+err.Error())
	}
	e.OOM = m.tree.HasOOMKill(m.rec.Cgroup + "/container")
	return e
}

// willRestart says whether another life follows.
func (m *monitor) willRestart(e tasks.Exit) bool {
	return !m.ending && !m.Store.Stopped(m.ID) && m.rec.Restart.Again(e.Code, m.life.Restarts)
}

// startNextLife starts the task again if its restart policy says so.
func (m *monitor) startNextLife(e *tasks.Exit) bool {
	start := func() error {
		if err := m.remountRoot(); err != nil {
			return err
		}
		return m.startLife()
	}
	return m.retryStart(e, start, func() {
		m.init.Close()
		m.recordEndOfLife(*e)
	})
}

// retryStart calls start for the life after e, with the lease bound to this process. A start that
// fails counts as a life that has ended: e becomes its end, cleanUp is called, and the restart policy
// decides again. It returns false, with the last end in e, if no life follows.
func (m *monitor) retryStart(e *tasks.Exit, start func() error, cleanUp func()) bool {
	for m.willRestart(*e) {
		if !m.waitToRestart(e.Finished.Sub(e.Started)) {
			return false
		}
		m.life.Restarts++
		err := m.bindLease()
		if err != nil {
			e.Error = joinTexts(e.Error, explainNoRestart(err))
			return false
		}
		if err = start(); err == nil {
			return true
		}
		now := time.Now().UTC()
		*e = tasks.Exit{Version: tasks.Version, Code: supervise.ExitCode(err), Error: err.Error(), Started: now, Finished: now, Restarts: m.life.Restarts}
		cleanUp()
	}
	return false
}

// stopMarkInterval is how often the mark of a task that was stopped is looked for.
const stopMarkInterval = 100 * time.Millisecond

// waitToRestart waits before the next life; it is false if there is to be none.
func (m *monitor) waitToRestart(lived time.Duration) bool {
	end := time.NewTimer(m.backoff.Next(lived))
	defer end.Stop()
	// berth stop can't signal a task that has no process: it leaves a mark.
	look := time.NewTicker(stopMarkInterval)
	defer look.Stop()
	for {
		select {
		case <-end.C:
			return !m.Store.Stopped(m.ID)
		case <-look.C:
			if m.Store.Stopped(m.ID) {
				return false
			}
		case <-m.server.signals: // there is no process
		case reason := <-m.endRequests:
			m.ending, m.reason = true, reason
			return false
		}
	}
}

// explainNoRestart says why a task whose lease can't be bound again isn't started again.
func explainNoRestart(err error) string {
	if errors.Is(err, ledger.ErrNotFound) {
		return "it isn't started again: its lease was released"
	}
	return "it isn't started again: " + err.Error()
}

// bindLease makes sure that the lease is still the task's, and proven by this process while
// there is no container: somebody may have ended it.
func (m *monitor) bindLease() error {
	if !m.hasOwnLease() {
		return nil
	}
	return m.ledger.Bind(context.Background(), m.rec.Lease, ledger.Owner{
		Process: ledger.Process{PID: m.self.PID, Start: m.self.Start}, Cgroup: m.rec.Cgroup,
	})
}
