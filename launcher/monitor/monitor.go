// Package monitor supervises one detached task, or a gang: it runs the runtime to create and start
// the container, logs the output, records the end, restarts the task by its restart policy, serves
// attached clients, and releases everything at the end.
//
// The launcher executes the monitor in its own process, with the same pid and mount namespace, so the
// owner of the task's lease stays the same. A monitor is small, because each task has one: one loop
// owns all state, one goroutine copies output, one accepts clients.
//
// A task in the foreground whose launcher was killed gets a monitor too. It enforces the timeout and
// releases everything; it doesn't handle the output.
//
// When a monitor is killed, container, lease and output survive: the container has both ends of its
// pipes, the task's cgroup proves the lease, and output that was read but not logged is still in the
// pipe. Another monitor adopts the task. A terminal hangs up with its monitor.
//
// The files are written in this order, so that a monitor that adopts the task knows what is left to
// do:
//
//	no run.json            the container wasn't started: everything is removed
//	run.json               the container runs, or has just ended
//	run.json with an end   the container is being removed, or the next life starts
//	exit.json              everything was released
package monitor

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/logs"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Options of Run.
type Options struct {
	Store tasks.Store
	ID    string
	// Adopt takes over a task whose monitor was killed.
	Adopt bool
	// Lock is the task's locked directory, inherited from the launcher. With Adopt it is nil, and Run
	// takes the lock.
	Lock *os.File
	// Locks are the same for the ranks of a gang, by rank.
	Locks []*os.File
	// ViewerPipe is the end of a pipe whose other end the berth run holds that is attached to a
	// gang. The gang ends with that process. nil for a detached gang.
	ViewerPipe *os.File
	// Status is a connection to the process that starts the task. It gets one line about the start. If
	// the other end is closed before that, the start is cancelled. It may be nil.
	Status *os.File
}

type monitor struct {
	Options
	rec         tasks.Record
	self        tasks.Process
	cgroups     cgroup.Hierarchy
	runtime     ociruntime.Runtime
	program     ociruntime.Program // the sealed runtime while a gang is started; zero otherwise
	ledger      *ledger.Ledger
	reaper      *reaper
	out         *copier
	server      *server
	endRequests chan string // requests to end the task, with the reason
	// watched means that this is a rank of a gang in the foreground: the log waits for its reader.
	watched bool
	// onRootThread calls do on the thread whose mount namespace has the task's root.
	onRootThread func(do func())

	life         tasks.Life
	init         *supervise.Process // the container's; nil without one
	initEnd      *supervise.Ending
	recordedExit *tasks.Exit // how this life ended, if that was written down before
	tty          *os.File    // master side of the terminal, nil without one
	// ending means that no other life follows. reason is why the task was stopped, "" if a user did.
	ending  bool
	reason  string
	backoff supervise.Backoff
	// remount means that the root has to be mounted before the next life.
	remount bool
}

// Run supervises a task until it has ended, and returns the task's exit code. The caller must exit
// with this code: control.Wait reads it for a task that isn't kept. Run must be called on the main
// thread by a goroutine that is locked to it. An error means that something could not be released;
// the task's record has the error too.
func Run(o Options) (code int, err error) {
	m, err := openTask(o)
	if errors.Is(err, lock.ErrBusy) && o.Adopt {
		o.report("held " + o.ID)
		return 0, nil
	}
	if err == nil && o.Adopt {
		m.leaveStarter()
	}
	if err == nil && m.rec.Gang != nil {
		return runGang(m)
	}
	if err == nil {
		err = m.prepareListening()
	}
	if err != nil {
		o.report(failureLine(err))
		return supervise.CodeFailed, err
	}
	if o.Adopt {
		return m.adopt()
	}
	if err := m.startLife(); err != nil {
		return supervise.ExitCode(err), m.removeUnstarted(err)
	}
	m.reportStarted()
	return m.finish(m.superviseLives())
}

// openTask locks the task and reads its record.
func openTask(o Options) (*monitor, error) {
	m := &monitor{Options: o}
	var err error
	if o.Lock == nil {
		if m.Lock, err = o.Store.Lock(o.ID); err != nil {
			return nil, err
		}
	}
	if m.rec, err = o.Store.Record(o.ID); err != nil {
		return nil, err
	}
	if m.self, err = o.Store.Self(); err != nil {
		return nil, err
	}
	if m.cgroups, err = cgroup.Detect(m.rec.CgroupMount); err != nil {
		return nil, err
	}
	m.runtime = ociruntime.Runtime{Path: m.rec.Runtime, Root: m.rec.RuntimeRoot, Log: m.path("bundle/log")}
	m.ledger = o.Store.Ledger(m.rec)
	return m, nil
}

// prepareListening makes this process a subreaper and opens the log, the socket and the pipes.
func (m *monitor) prepareListening() error {
	if err := m.becomeSubreaper(); err != nil {
		return err
	}
	return m.openOutputs()
}

// openOutputs opens the task's log, the socket for clients, and the copier with the task's pipes.
func (m *monitor) openOutputs() error {
	log, err := logs.Open(m.path("log"), m.rec.Log.Size, m.rec.Log.Files)
	if err != nil {
		return err
	}
	if m.watched {
		log.ExpectReader()
	}
	if m.server, err = newServer(m.Store.Socket(m.ID)); err != nil {
		return err
	}
	m.out, err = newCopier(log, m.server.broadcast)
	if err != nil || m.rec.Terminal || !m.rec.Detached { // without pipes to a monitor
		return err
	}
	for stream, name := range map[logs.Stream]string{logs.Stdout: "stdout", logs.Stderr: "stderr"} {
		if err := m.out.addPipe(stream, m.path(name)); err != nil {
			return err
		}
	}
	if m.rec.Interactive {
		in, err := os.OpenFile(m.path("stdin"), os.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		m.server.setInput(in)
	}
	return nil
}

// becomeSubreaper makes this process the parent of processes that runtimes leave behind, and
// registers for SIGCHLD and for signals that ask it to end.
func (m *monitor) becomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	m.reaper, m.endRequests = newReaper(), make(chan string, 1)
	m.onRootThread = callDirectly
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	go func() {
		for range signals {
			m.requestEnd("its monitor was asked to end")
		}
	}()
	return nil
}

// requestEnd asks the task to end. It never blocks; if a request is pending, it does nothing.
func (m *monitor) requestEnd(reason string) {
	select {
	case m.endRequests <- reason:
	default:
	}
}

func (m *monitor) path(name string) string { return filepath.Join(m.Store.Dir(m.ID), name) }

// report writes the result of the start to Status, once.
func (o *Options) report(text string) {
	if o.Status == nil {
		return
	}
	_, _ = o.Status.WriteString(text + "\n") // the other process may have ended
	_ = o.Status.Close()
	o.Status = nil
}

// failureLine returns the report of a failed start, which control.ParseStatus reads.
func failureLine(err error) string { return fmt.Sprintf("failed %d %v", supervise.ExitCode(err), err) }

// starterWaits reports whether the process that started the task still waits for the report.
func (m *monitor) starterWaits() bool {
	if m.Status == nil {
		return true
	}
	hungUp, err := isReady(m.Status, unix.POLLIN|unix.POLLRDHUP)
	return err != nil || !hungUp
}

// isReady reports whether one of these poll events is pending. It doesn't wait.
func isReady(f *os.File, events int16) (ready bool, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return false, err
	}
	err = raw.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, 0)
		ready = err == nil && n > 0
	})
	return ready, err
}

// reportStarted leaves the cgroup of the session or service that the task was started from, and then
// reports that the task runs. The process that waits for the report exits upon it. If that is the
// last process of a service, systemd kills everything that is left in the service's cgroup.
func (m *monitor) reportStarted() {
	if !m.Adopt { // with Adopt, Run has already called leaveStarter
		m.leaveStarter()
	}
	m.report("started " + m.ID)
}

// leaveStarter leaves the cgroup of the session or service that the monitor was started from. If that
// fails, the monitor ends with the session or service, and the task doesn't.
func (m *monitor) leaveStarter() {
	_ = m.cgroups.EnterAll(m.rec.MonitorsCgroup())
}

// superviseLives supervises one life after the other, and returns the end of the last one.
func (m *monitor) superviseLives() tasks.Exit {
	for {
		exit := m.superviseLife()
		m.recordEndOfLife(exit)
		if !m.startNextLife(&exit) {
			return exit
		}
	}
}

// recordEndOfLife is called when a life has ended. It logs the remaining output, records the end, and
// then removes the container.
func (m *monitor) recordEndOfLife(exit tasks.Exit) {
	m.out.copyRest()
	m.life.Ended = &exit
	m.logError(m.Store.WriteLife(m.ID, m.life))
	m.closeTerminal()
	m.logError(m.deleteContainer())
	m.server.lifeEnded(exit.Code)
}

// logError writes an error that doesn't change the further steps to the monitor's own log.
func (m *monitor) logError(err error) {
	if err != nil {
		logOwn(os.Stderr, err)
	}
}
