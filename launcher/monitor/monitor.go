// Package monitor watches over one detached task: it has the runtime make and start the
// container, writes down what it says and how it ends, starts it again where that was
// asked for, serves those who attach, and gives everything back at the end.
//
// It is what the launcher becomes (exec: the same process, the same mount namespace), so
// the task's lease keeps its owner. It is small, for there is one for each task: one
// loop that owns everything, one goroutine that copies output, one that takes clients.
//
// A task in the foreground whose launcher was killed gets one too, which keeps its time limit
// and gives everything back; the output isn't the monitor's.
//
// A monitor that is killed loses neither container nor lease nor output: the container
// has both ends of its pipes, the lease is proven by the task's cgroup, and what was
// read but not yet written down is still in the pipe. Another monitor adopts the task.
// A terminal is hung up with its monitor.
//
// The order of the files at each step is such that whoever finds the task later knows
// what is left to be done:
//
//	no run.json            the container wasn't started: all of it is removed
//	run.json               it runs, or has just ended
//	run.json with an end   its remains are being removed, or the next life begins
//	exit.json              everything was given back
package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

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
	// Lock is the task's directory, locked, as the launcher hands it on; with Adopt it
	// is nil, and the lock is taken.
	Lock *os.File
	// Locks are those of a gang's ranks, in their order, as Lock is.
	Locks []*os.File
	// ViewerPipe is the end of a pipe whose other end the berth run holds that is attached to a
	// gang. The gang ends with that process. nil for a detached gang.
	ViewerPipe *os.File
	// Status is told whether the task has started, and says by hanging up that nobody
	// wants it any more; it may be nil.
	Status *os.File
}

type monitor struct {
	Options
	rec         tasks.Record
	self        tasks.Process
	tree        cgroup.Hierarchy
	runtime     ociruntime.Runtime
	program     ociruntime.Program // the runtime's, while a gang is begun; the zero value otherwise
	ledger      *ledger.Ledger
	reaper      *reaper
	out         *copier
	server      *server
	endRequests chan string // to end, and why
	// watched: it is a rank of a gang in the foreground, whose output is all seen.
	watched bool
	// onRootThread does something on the thread whose mount namespace has the task's root.
	onRootThread func(do func())

	life    tasks.Life
	init    *supervise.Process // the container's; nil without one
	initEnd *supervise.Ending
	known   *tasks.Exit // how this life ended, if that was written down before
	tty     *os.File    // master side of the terminal, nil without one
	// ending: there will be no other life. reason says why, where it's no person's wish.
	ending  bool
	reason  string
	backoff supervise.Backoff
	// remount: the root has to be mounted before the next life.
	remount bool
}

// Run watches over a task until it has ended, and returns its exit code, which is to be
// this process's, too: who waits for a task that keeps nothing learns it from there. Run
// must be called on the thread that the process began with, of a goroutine locked to it.
// An error means that something could not be given back; the task's record says so.
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
	return m.giveBack(m.superviseLives())
}

// openTask reads what the task is.
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
	if m.tree, err = cgroup.Detect(m.rec.CgroupMount); err != nil {
		return nil, err
	}
	m.runtime = ociruntime.Runtime{Path: m.rec.Runtime, Root: m.rec.RuntimeRoot, Log: m.path("bundle/log")}
	m.ledger = ledger.Open(ledger.Options{
		Dir: o.Store.State, Events: o.Store.Data, Proc: o.Store.Proc, Cgroup: m.rec.CgroupMount,
	})
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
	_, _ = o.Status.WriteString(text + "\n") // nobody may listen any more
	_ = o.Status.Close()
	o.Status = nil
}

// failureLine is what is reported of an error: its exit code and its text.
func failureLine(err error) string { return fmt.Sprintf("failed %d %v", supervise.ExitCode(err), err) }

// isWanted says whether the process that asked for the task still listens.
func (m *monitor) isWanted() bool {
	if m.Status == nil {
		return true
	}
	hungUp, err := isReady(m.Status, unix.POLLIN|unix.POLLRDHUP)
	return err != nil || !hungUp
}

// isReady says whether one of these events is there, and waits for none.
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

// reportStarted leaves the session or service that the task was started from, and says that
// the task runs. In this order: the process that waits for the report ends with it, perhaps
// as the last of a service, upon which systemd ends everything that is still in there.
func (m *monitor) reportStarted() {
	if !m.Adopt { // an adopting monitor has left it already
		m.leaveStarter()
	}
	m.report("started " + m.ID)
}

// leaveStarter leaves the session or service that the monitor was started from.
func (m *monitor) leaveStarter() {
	// Where that fails, the monitor goes with them; the task doesn't.
	_ = m.tree.EnterAll(m.rec.MonitorsCgroup())
}

// superviseLives goes from life to life, and returns how the last one ended.
func (m *monitor) superviseLives() tasks.Exit {
	for {
		exit := m.superviseLife()
		m.recordEndOfLife(exit)
		if !m.startNextLife(&exit) {
			return exit
		}
	}
}

// recordEndOfLife is called when a life has: all of its output is written down, then its end, and
// then its container is removed.
func (m *monitor) recordEndOfLife(exit tasks.Exit) {
	m.out.copyRest()
	m.life.Ended = &exit
	m.logError(m.Store.WriteLife(m.ID, m.life))
	m.closeTerminal()
	m.logError(m.deleteContainer())
	m.server.lifeEnded(exit.Code)
}

// logError keeps an error that doesn't change what is to be done.
func (m *monitor) logError(err error) {
	if err != nil {
		logOwn(os.Stderr, err)
	}
}

// deleteContainer removes what the runtime knows of the container, and ends what is left of it.
func (m *monitor) deleteContainer() error {
	if !m.runtime.Knows(m.ID) {
		return nil
	}
	out, err := m.callRuntime("delete", "--force", m.ID)
	if err == nil {
		return nil
	}
	// A runtime that is gone, or broken by its upgrade, must not keep the task.
	if some, e := m.tree.Populated(m.rec.Cgroup + "/container"); e == nil && !some {
		return os.RemoveAll(filepath.Join(m.runtime.Root, m.ID))
	}
	return fmt.Errorf("delete container %s: %w: %s", m.ID, err, out)
}

// removeUnstarted removes a task that has never started.
func (m *monitor) removeUnstarted(cause error) error {
	err := errors.Join(m.deleteContainer(), m.removeCgroupAndLease())
	if err == nil {
		err = m.removeOrRecordUnstarted(cause)
	}
	if err != nil {
		cause = fmt.Errorf("%w; and then: %w", cause, err)
	}
	m.report(failureLine(cause))
	return err
}

// removeOrRecordUnstarted removes a task that has never started. If the task's id was reported while it
// waited for devices, the record stays, with cause as the task's end.
func (m *monitor) removeOrRecordUnstarted(cause error) error {
	if !m.rec.Queued || m.rec.Remove {
		return m.removeTask()
	}
	exit := supervise.NewFailedExit(cause)
	err := m.Store.WriteExit(m.ID, exit)
	m.server.shutDown(exit.Code)
	return err
}

// removeCgroupAndLease gives cgroup and lease back. Processes that can't be ended keep both.
func (m *monitor) removeCgroupAndLease() error {
	err := m.killProcesses()
	if err == nil {
		err = m.tree.RemoveAll(m.rec.Cgroup)
	}
	if err != nil {
		if m.hasOwnLease() {
			err = fmt.Errorf("lease %s stays until the task's processes have ended: %w", m.rec.Lease, err)
		}
		return err
	}
	if !m.hasOwnLease() {
		return nil
	}
	if err := m.ledger.Release(context.Background(), m.rec.Lease); err != nil {
		return fmt.Errorf("release lease %s: %w", m.rec.Lease, err)
	}
	return nil
}

// killTimeout is how long processes may take that were killed.
const killTimeout = 5 * time.Second

// killProcesses ends what is left in the task's cgroup: a runtime that was cut off, for instance.
func (m *monitor) killProcesses() error {
	if some, err := m.tree.Populated(m.rec.Cgroup); err == nil && !some {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	return m.tree.Kill(ctx, m.rec.Cgroup)
}

// hasOwnLease says whether the task has a lease of its own.
func (m *monitor) hasOwnLease() bool { return m.rec.Lease != "" && !m.rec.Shared }

// giveBack gives back everything of a task that has ended, and says how it did.
func (m *monitor) giveBack(exit tasks.Exit) (int, error) {
	err := errors.Join(m.deleteContainer(), m.removeCgroupAndLease())
	if err != nil {
		exit.Error = joinTexts(exit.Error, err.Error())
	}
	if m.rec.Remove && err == nil {
		err = m.removeTask()
	} else {
		err = errors.Join(err, m.Store.WriteExit(m.ID, exit))
	}
	m.server.shutDown(exit.Code)
	return exit.Code, err
}

// removeTask removes the task's directory, in which this process alone sees the root: what
// is mounted there must not be emptied.
func (m *monitor) removeTask() error {
	err := unix.Unmount(m.path("rootfs"), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", m.path("rootfs"), err)
	}
	return m.Store.Remove(m.ID)
}

func joinTexts(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}
