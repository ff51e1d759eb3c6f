package monitor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/logs"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Logger writes the log of a detached task that containerd runs, and serves attached clients. The
// shim starts it in the container's bundle before the container is created, and ends it when the
// container was removed. Logger stops the task after its timeout and makes no other decision.
type Logger struct {
	Store tasks.Store
	ID    string
	// Out and Err are pipes with the task's output. Ready is closed once they are read.
	Out, Err, Ready *os.File
	// Shim is the parent of the container's first process.
	Shim int
	// Ended is the command to start when the task has ended.
	Ended []string
}

// Run returns when all output was logged and the container was removed.
func (l Logger) Run() error {
	rec, err := l.Store.Record(l.ID)
	if err != nil {
		return err
	}
	cgroups, err := cgroup.Detect(rec.CgroupMount)
	if err != nil {
		return err
	}
	asked, err := l.watchShim()
	if err != nil {
		return err
	}
	log, err := logs.Open(l.Store.Path(l.ID, "log"), rec.Log.Size, rec.Log.Files)
	if err != nil {
		return err
	}
	server, err := newServer(l.Store.Socket(l.ID))
	if err != nil {
		return err
	}
	out, err := newCopier(log, server.broadcast)
	if err != nil {
		return err
	}
	out.addStream(logs.Stdout, l.Out)
	out.addStream(logs.Stderr, l.Err)
	if err := l.Ready.Close(); err != nil {
		return err
	}
	w := loggedTask{Logger: l, rec: rec, cgroups: cgroups, server: server, asked: asked}
	code, ended := w.waitForEnd()
	out.copyRest()
	if ended {
		err = l.startEndedCommand(w.init.KilledFor())
	}
	if rec.Terminal && !w.over {
		w.awaitShim()
		out.copyRest()
	}
	server.lifeEnded(code)
	if !w.over {
		<-asked // the shim asks when the container was removed
	}
	out.copyRest()
	server.shutDown(code)
	return err
}

// startEndedCommand starts the command Ended and doesn't wait for it: the command may remove the
// container, and then the shim waits for this process. killedFor is the result of
// supervise.Process.KilledFor.
func (l Logger) startEndedCommand(killedFor syscall.Signal) error {
	words := l.Ended
	if killedFor != 0 {
		words = append(words, strconv.Itoa(supervise.CodeOfSignal(killedFor)))
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", l.Ended[0], err)
	}
	go func() { _ = cmd.Wait() }() // only reaped
	return nil
}

// watchShim returns a channel that receives when the shim asks this process to end, or has itself
// ended: for a task with a terminal the shim doesn't ask.
func (l Logger) watchShim() (<-chan os.Signal, error) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGTERM)
	shim, err := supervise.OpenProcess(l.Store.Proc, l.Shim)
	if err != nil {
		return nil, fmt.Errorf("open the shim: %w", err)
	}
	end := shim.Await()
	shim.Close()
	go func() {
		<-end.Done
		select {
		case asked <- unix.SIGTERM:
		default: // the shim has asked before
		}
	}()
	return asked, nil
}

// loggedTask is the task of a Logger in Run.
type loggedTask struct {
	Logger
	rec     tasks.Record
	cgroups cgroup.Hierarchy
	server  *server
	asked   <-chan os.Signal
	over    bool // the shim has asked to end
	init    *supervise.Process
}

// waitForEnd waits for the end of the container's first process. ended is false if that process
// never existed.
func (w *loggedTask) waitForEnd() (code int, ended bool) {
	for !w.findInit() {
		select {
		case <-w.asked:
			w.over = true
			return supervise.CodeUnknown, false
		case <-time.After(5 * time.Millisecond):
		}
	}
	defer w.init.Close()
	end := w.init.Await()
	supervise.Life{
		Terms: supervise.TermsOf(w.rec, 0),
		Ended: end.Done, Send: w.sendSignal, Signals: w.server.signals,
		Thaw: func() { w.cgroups.Thaw(w.rec.Cgroup) }, Killed: w.init.Killed,
	}.Wait()
	select {
	case <-w.asked: // the shim may ask at the same time as the process ends
		w.over = true
	default:
	}
	code, _ = w.init.ExitCode(end)
	return code, true
}

func (w *loggedTask) sendSignal(sig syscall.Signal) bool {
	_ = w.init.SendAsInit(sig) // the process may have ended
	return true
}

// awaitShim waits until the shim has forwarded the rest of a terminal's output, which is certain
// once the container was removed. A container that is kept for a restart isn't removed: the wait
// ends after flushTimeout.
func (w *loggedTask) awaitShim() {
	select {
	case <-w.asked:
		w.over = true
	case <-time.After(flushTimeout):
	}
}

// findInit opens the container's first process, whose pid the runtime writes to the bundle and whose
// parent is the shim. It returns false before that.
func (w *loggedTask) findInit() bool {
	pid, err := smallfile.Int("init.pid")
	if err != nil || pid <= 0 {
		return false
	}
	p, err := supervise.OpenProcess(w.Store.Proc, pid)
	if err != nil {
		return false
	}
	if parent, err := process.Parent(cmp.Or(w.Store.Proc, "/proc"), pid); err != nil || parent != w.Shim {
		p.Close() // a later process with the same pid
		return false
	}
	w.init = p
	if w.rec.Terminal {
		w.server.setResize(w.setTerminalSize)
		in, err := os.OpenFile(w.Store.Path(w.ID, "stdin"), os.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		if err == nil {
			w.server.setInput(in)
		}
	}
	return true
}

// setTerminalSize sets the size of the task's terminal by the side that the task has: the other
// is the shim's. What the task may have put in its place is no terminal and stays as it is.
func (w *loggedTask) setTerminalSize(size *unix.Winsize) {
	tty := openTerminalOf(filepath.Join(cmp.Or(w.Store.Proc, "/proc"), strconv.Itoa(w.init.PID), "fd/0"))
	if tty == nil {
		return
	}
	_ = errors.Join(unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, size), tty.Close()) // it may be gone
}

// openTerminalOf opens the terminal to which a link of procfs leads, nil if it leads to anything else. The task can
// exchange the link's target at any time: the file that was checked is opened, and no other.
func openTerminalOf(link string) *os.File {
	at, err := unix.Open(link, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(at) }() // an O_PATH descriptor
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return nil
	}
	const first, last = 136, 143 // of the pseudoterminals' majors
	if major := unix.Major(st.Rdev); st.Mode&unix.S_IFMT != unix.S_IFCHR || major < first || major > last {
		return nil
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(at), unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), link)
}
