package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/attach"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// begin makes the container and starts it. Between the two its life is recorded, so
// that no container runs of which nobody knows.
func (m *monitor) begin() error {
	m.children.forget()
	if err := m.make(); err != nil {
		return err
	}
	if !m.wanted() {
		return errUnwanted
	}
	return m.start()
}

var errUnwanted = errors.New("who asked for the task is gone")

// make has the container made, and records its life.
func (m *monitor) make() error {
	if err := m.create(); err != nil {
		return err
	}
	pid, err := smallfile.Int(m.in("bundle/pid"))
	if err != nil {
		return err
	}
	if m.init, err = openInit(m.Store.Proc, pid); err != nil {
		return err
	}
	if err := keepOn(m.rec.CPUs, procOf(m.Store.Proc), pid); err != nil {
		return err
	}
	m.life = tasks.Life{
		Init: m.init.Process, Started: time.Now().UTC(), Restarts: m.life.Restarts,
		BootID: m.rec.BootID, Monitor: m.self,
	}
	return errors.Join(m.Store.KeepRoom(m.ID), m.Store.WriteLife(m.ID, m.life))
}

// start has the container start, which was made. Somebody may have killed its init since;
// then crun would wait for that for ever.
func (m *monitor) start() error {
	if begun, err := m.startAtOnce(); begun || err != nil {
		return err
	}
	m.starting = true
	out, err := m.run("start", m.ID)
	m.starting = false
	switch {
	case err == nil:
		return nil
	case m.initDied():
		return errDied
	}
	return fmt.Errorf("%w: %s", m.runtime.Failed(err), out)
}

// startAtOnce is start where that needs no process; it is false where it does.
func (m *monitor) startAtOnce() (begun bool, err error) {
	m.children.bury()
	if m.initDied() {
		return false, errDied
	}
	return m.runtime.Begin(m.ID, m.in("bundle/config.json"))
}

var errDied = errors.New("it was killed before it had started")

// initDied says whether the container's init, being a child of this process, has died.
func (m *monitor) initDied() bool {
	return m.init.PID > 0 && m.children.buried(m.init.PID)
}

// create has the runtime make the container, in the task's cgroup from its first
// instruction.
func (m *monitor) create() error {
	// runc creates bundle/.pid exclusively and renames it to bundle/pid: what a killed runc has
	// left of it would keep every other from making the container.
	for _, stale := range []string{"bundle/pid", "bundle/.pid", "bundle/log"} {
		if err := os.Remove(m.in(stale)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := m.tree.CreateTask(m.rec.Cgroup); err != nil {
		return err
	}
	words := []string{"create", "--bundle", m.in("bundle"), "--pid-file", m.in("bundle/pid")}
	var console *ociruntime.Console
	if m.rec.Terminal {
		var err error
		if console, err = ociruntime.NewConsole(m.in("bundle")); err != nil {
			return err
		}
		defer console.Close()
		words = append(words, "--console-socket", console.Path)
	}
	cmd := m.runtime.Command(append(words, m.ID)...)
	stdio, err := m.stdio()
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdio[0], stdio[1], stdio[2]
	cmd, err = m.launch(cmd, func(cmd *exec.Cmd) error { return m.tree.StartRuntime(cmd, m.rec.Cgroup) })
	for _, f := range stdio {
		f.Close() // the runtime has its own
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", m.runtime.Path, err)
	}
	if err := m.wait(cmd, true); err != nil {
		return m.runtime.Failed(err)
	}
	if console != nil {
		return m.pickUp(console)
	}
	return nil
}

// stdio opens what becomes the container's. It gets both ends of its pipes: a write
// never fails for want of a reader, and what is in a pipe stays when its reader dies.
func (m *monitor) stdio() (files [3]*os.File, err error) {
	names := [3]string{os.DevNull, os.DevNull, os.DevNull}
	if !m.rec.Terminal {
		names[1], names[2] = m.in("stdout"), m.in("stderr")
		if m.rec.Interactive {
			names[0] = m.in("stdin")
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

// initProcess is the container's first process.
type initProcess struct {
	tasks.Process
	pidfd *os.File // nil without a process
	// killedFor is the signal that it would have died of, were it not pid 1.
	killedFor unix.Signal
	// ended tells of an init that isn't this process's child; nil for one that is.
	ended chan foreignEnd
}

func openInit(proc string, pid int) (initProcess, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return initProcess{}, fmt.Errorf("open process %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	start, err := process.Start(procOf(proc), pid)
	if err != nil {
		return initProcess{}, errors.Join(err, f.Close())
	}
	return initProcess{Process: tasks.Process{PID: pid, Start: start}, pidfd: f}, nil
}

// procOf is where procfs is; "" means the usual place.
func procOf(proc string) string {
	if proc == "" {
		return "/proc"
	}
	return proc
}

func (i *initProcess) close() {
	if i.pidfd != nil {
		i.pidfd.Close() // a handle
		i.pidfd = nil
	}
}

// signal does to init what the signal would do outside a container. The kernel drops
// signals that pid 1 doesn't heed; ending it is what the sender meant.
func (m *monitor) signal(sig unix.Signal) {
	if m.init.pidfd == nil {
		return
	}
	send := sig
	if ends(sig) && !process.Heeds(procOf(m.Store.Proc), m.init.PID, int(sig)) {
		m.init.killedFor, send = sig, unix.SIGKILL
	}
	err := unix.PidfdSendSignal(int(m.init.pidfd.Fd()), send, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		m.note(fmt.Errorf("signal process %d: %w", m.init.PID, err))
	}
}

// ends says whether a process that doesn't heed the signal is ended by it.
func ends(sig unix.Signal) bool {
	switch sig {
	case unix.SIGKILL, unix.SIGCHLD, unix.SIGCONT, unix.SIGURG, unix.SIGWINCH, unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
		return false
	}
	return true
}

// watch waits until the container's init has ended, and does meanwhile what is asked.
func (m *monitor) watch() tasks.Exit {
	var timeout, kill <-chan time.Time
	if m.rec.Timeout > 0 {
		timeout = time.After(time.Until(m.life.Started.Add(time.Duration(m.rec.Timeout))))
	}
	for {
		if status, ok := m.children.died(m.init.PID); ok {
			return m.exit(status, nil)
		}
		select {
		case <-m.deaths:
		case end := <-m.init.ended:
			if end.known != nil {
				return *end.known
			}
			return m.exit(end.status, end.err)
		case r := <-m.server.requests:
			m.serve(r)
		case <-timeout:
			kill = m.end(fmt.Sprintf("its time of %v was over", time.Duration(m.rec.Timeout)))
		case reason := <-m.asked:
			kill = m.end(reason)
		case <-kill:
			m.signal(unix.SIGKILL)
		}
	}
}

// grace is what Record.Grace means where it's 0.
const grace = 10 * time.Second

// end asks the task to end for good, and returns when it is to be made to.
func (m *monitor) end(reason string) <-chan time.Time {
	m.ending, m.reason = true, reason
	sig := unix.SIGTERM
	if m.rec.StopSignal > 0 {
		sig = unix.Signal(m.rec.StopSignal)
	}
	m.signal(sig)
	switch {
	case m.rec.Grace < 0:
		return nil
	case m.rec.Grace > 0:
		return time.After(time.Duration(m.rec.Grace))
	}
	return time.After(grace)
}

func (m *monitor) serve(r request) {
	switch {
	case r.kind == attach.Signal && len(r.data) == 1:
		m.signal(unix.Signal(r.data[0]))
	case r.kind == attach.Resize && len(r.data) == 4 && m.tty != nil:
		m.note(resize(m.tty, r.data))
	}
}

// exit is how a life ended.
func (m *monitor) exit(status unix.WaitStatus, err error) tasks.Exit {
	killedFor := m.init.killedFor
	m.init.close()
	e := tasks.Exit{
		Version: tasks.Version, Error: m.reason,
		Started: m.life.Started, Finished: time.Now().UTC(), Restarts: m.life.Restarts,
	}
	switch {
	case err != nil:
		e.Code, e.Unknown, e.Error = codeUnknown, true, joined(m.reason, "its monitor was killed, and "+err.Error())
	case status.Signaled():
		sig := status.Signal()
		if killedFor != 0 && sig == unix.SIGKILL {
			sig = killedFor
		}
		e.Code, e.Signal = 128+int(sig), int(sig)
	default:
		e.Code = status.ExitStatus()
	}
	e.OOM = m.tree.HasOOMKill(m.rec.Cgroup + "/container")
	return e
}

// again says whether another life follows.
func (m *monitor) again(e tasks.Exit) bool {
	return !m.ending && !m.Store.Stopped(m.ID) && m.rec.Restart.Again(e.Code, m.life.Restarts)
}

// next begins the next life, if there is to be one. What can't be begun is a life that
// has ended.
func (m *monitor) next(e *tasks.Exit) bool {
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
		if err = m.mount(); err == nil {
			err = m.begin()
		}
		if err == nil {
			return true
		}
		now := time.Now().UTC()
		*e = tasks.Exit{Version: tasks.Version, Code: codeOf(err), Error: err.Error(), Started: now, Finished: now, Restarts: m.life.Restarts}
		m.init.close()
		m.ended(*e)
	}
	return false
}

// Pauses between two lives: the next is twice as long, unless a life lasted.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = time.Minute
	longLife   = 10 * time.Second
)

func pauseAfter(restarts int) time.Duration {
	p := firstPause
	for range restarts {
		if p *= 2; p >= maxPause {
			return maxPause
		}
	}
	return p
}

// pause waits before the next life; it is false if there is to be none.
func (m *monitor) pause(lived time.Duration) bool {
	if lived >= longLife {
		m.short = 0
	}
	end := time.NewTimer(pauseAfter(m.short))
	defer end.Stop()
	m.short++
	// Whoever stops a task that has no process can't signal one: its mark is looked for.
	look := time.NewTicker(firstPause)
	defer look.Stop()
	for {
		select {
		case <-end.C:
			return !m.Store.Stopped(m.ID)
		case <-look.C:
			if m.Store.Stopped(m.ID) {
				return false
			}
		case <-m.deaths:
			m.children.bury()
		case <-m.server.requests:
		case reason := <-m.asked:
			m.ending, m.reason = true, reason
			return false
		}
	}
}

// holds makes sure that the lease is still the task's, and proven by this process while
// there is no container: somebody may have ended it.
func (m *monitor) holds() error {
	if !m.leased() {
		return nil
	}
	return m.ledger.Bind(context.Background(), m.rec.Lease, ledger.Owner{
		Process: ledger.Process{PID: m.self.PID, Start: m.self.Start}, Cgroup: m.rec.Cgroup,
	})
}
