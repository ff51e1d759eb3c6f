package monitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// startLife creates and starts the container. The life is recorded between the two, so that every
// running container has a record.
func (m *monitor) startLife() error {
	m.reaper.forget()
	if err := m.makeContainer(); err != nil {
		return err
	}
	if !m.starterWaits() {
		return errStarterGone
	}
	return m.startContainer()
}

var errStarterGone = errors.New("the process that started the task has ended")

// makeContainer creates the container and records its life.
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
	m.initEnd, m.recordedExit = m.reaper.await(pid), nil
	if err := setCPUs(m.rec.CPUs, cmp.Or(m.Store.Proc, "/proc"), pid); err != nil {
		return err
	}
	m.life = tasks.Life{
		Init: m.init.Process, Started: time.Now().UTC(), Restarts: m.life.Restarts,
		BootID: m.rec.BootID, Monitor: m.self,
	}
	return errors.Join(m.Store.ReserveSpace(m.ID), m.Store.WriteLife(m.ID, m.life))
}

// startContainer starts the container that makeContainer has created. It returns errDied if the
// container's init was killed meanwhile, and errStopped if it was stopped. crun then waits for ever, runc while
// init is stopped; waitRuntime kills them.
func (m *monitor) startContainer() error {
	if begun, err := m.startWithoutRuntime(); begun || err != nil {
		return err
	}
	out, err := m.callRuntime("start", m.ID)
	switch {
	case err == nil || errors.Is(err, errStopped):
		return err
	case m.initDied():
		return errDied
	}
	return fmt.Errorf("%w: %s", m.runtime.Failed(err), out)
}

// startWithoutRuntime is startContainer without running the runtime (Runtime.StartWithoutRuntime). It
// returns false if the runtime has to be run.
func (m *monitor) startWithoutRuntime() (begun bool, err error) {
	if m.initDied() {
		return false, errDied
	}
	return m.runtime.StartWithoutRuntime(m.ID, m.path("bundle/config.json"))
}

var errDied = errors.New("it was killed before it had started")

// initDied reports whether the container's init has died.
func (m *monitor) initDied() bool {
	m.reaper.collect()
	return m.initEnd.HasEnded()
}

// createContainer runs the runtime to create the container. The runtime is in the task's cgroup from
// its first instruction.
func (m *monitor) createContainer() error {
	// runc creates bundle/.pid with O_EXCL and renames it to bundle/pid. A .pid that a killed runc has
	// left would make every later one fail.
	for _, stale := range []string{"bundle/pid", "bundle/.pid", "bundle/log"} {
		if err := os.Remove(m.path(stale)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := m.cgroups.CreateTask(m.rec.Cgroup); err != nil {
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
	cmd, err = m.startRuntime(cmd, func(cmd *exec.Cmd) error { return m.cgroups.StartRuntime(cmd, m.rec.Cgroup) })
	for _, f := range stdio {
		f.Close() // the runtime has duplicates
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", m.runtime.Path, err)
	}
	switch err := m.waitRuntime(cmd, "create"); {
	case errors.Is(err, errStopped):
		return err
	case err != nil:
		return m.runtime.Failed(err)
	}
	if console != nil {
		return m.receiveTerminal(console)
	}
	return nil
}

// openStdio opens the container's standard files. The container holds both ends of its FIFOs, so that
// writes don't fail with EPIPE, and unread output outlives the monitor.
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

// sendSignal sends a signal to the container's init, see supervise.Process.SendAsInit.
func (m *monitor) sendSignal(sig syscall.Signal) bool {
	if m.init != nil {
		m.logError(m.init.SendAsInit(sig))
	}
	return true
}

// thaw implements supervise.Life.Thaw.
func (m *monitor) thaw() { m.cgroups.Thaw(m.rec.FreezableCgroup()) }

// superviseLife supervises the container's init until it has ended.
func (m *monitor) superviseLife() tasks.Exit {
	if m.recordedExit != nil {
		return *m.recordedExit
	}
	why := supervise.Life{
		Terms: supervise.TermsOf(m.rec, m.init.Age()),
		Ended: m.initEnd.Done, Send: m.sendSignal, Thaw: m.thaw, Killed: m.init.Killed, Signals: m.server.signals, Stop: m.endRequests,
	}.Wait()
	if why != "" {
		m.ending, m.reason = true, why
	}
	return m.exitOfLife()
}

// exitOfLife returns the end of a life.
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
	e.OOM = m.cgroups.HasOOMKill(m.rec.Cgroup + "/container")
	return e
}

// willRestart reports whether another life follows one that has ended with e.
func (m *monitor) willRestart(e tasks.Exit) bool {
	return !m.ending && !m.Store.Stopped(m.ID) && m.rec.Restart.Allows(e.Code, m.life.Restarts)
}

// startNextLife restarts the task if its restart policy says so.
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

// stopMarkInterval is how often the mark of berth stop is looked for between two lives.
const stopMarkInterval = 100 * time.Millisecond

// waitToRestart pauses before the next life. It returns false if the task was stopped meanwhile.
func (m *monitor) waitToRestart(lived time.Duration) bool {
	end := time.NewTimer(m.backoff.Next(lived))
	defer end.Stop()
	// Between two lives there is no process to signal, so berth stop only leaves its mark.
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

// explainNoRestart returns the message for a task that isn't restarted because of an error of
// bindLease.
func explainNoRestart(err error) string {
	if errors.Is(err, ledger.ErrNotFound) {
		return "it isn't started again: its lease was released"
	}
	return "it isn't started again: " + err.Error()
}

// bindLease binds the task's lease to this process, which proves it while there is no container. The
// error Is ledger.ErrNotFound if the lease was released.
func (m *monitor) bindLease() error {
	if !m.hasOwnLease() {
		return m.checkParent()
	}
	return m.ledger.Bind(context.Background(), m.rec.Lease, ledger.Owner{
		Process: ledger.Process{PID: m.self.PID, Start: m.self.Start}, Cgroup: m.rec.Cgroup,
	})
}

// checkParent returns an error if the cgroup around the task's is gone. That of a task without root, or in a lease of berth alloc, goes with
// the lease: the error Is ledger.ErrNotFound then.
func (m *monitor) checkParent() error {
	parent := path.Dir(m.rec.Cgroup)
	if m.rec.Cgroup == "" || parent == tasks.CgroupParent {
		return nil
	}
	dir, err := m.cgroups.Dir(parent)
	if err == nil {
		_, err = os.Stat(dir)
	}
	if errors.Is(err, fs.ErrNotExist) && m.rec.Lease != "" {
		return fmt.Errorf("lease %s: %w", m.rec.Lease, ledger.ErrNotFound)
	}
	return err
}
