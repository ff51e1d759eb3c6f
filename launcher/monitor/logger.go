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
	"github.com/berth-gpu/berth/launcher/logs"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Logger writes the log of a detached task that a container engine runs, and serves attached
// clients. The engine's shim starts it in the container's bundle before the container is
// created, and ends it when the container was removed. Logger ends the task after its timeout
// and makes no other decision about it.
type Logger struct {
	Store tasks.Store
	ID    string
	// Out and Err are what the task writes, Ready is closed when they are being read.
	Out, Err, Ready *os.File
	// Shim is the parent of the container's first process.
	Shim int
	// Ended is a command to be started when the task has ended.
	Ended []string
}

// Run ends when there is nothing more to be written down.
func (l Logger) Run() error {
	rec, err := l.Store.Record(l.ID)
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
	w := watch{Logger: l, rec: rec, server: server, asked: asked}
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
		<-asked // by the shim, when the container has been removed
	}
	out.copyRest()
	server.shutDown(code)
	return err
}

// startEndedCommand starts the command that sees to what comes after the task's end. It isn't waited
// for: it may remove the container, and then the shim waits for this process.
// killedFor is the signal that it was killed in the place of.
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

// watchShim tells when the shim wants this to end, or has ended itself: with a terminal it
// says nothing.
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
		default: // it has asked as well
		}
	}()
	return asked, nil
}

// watch is a logger while its task lives.
type watch struct {
	Logger
	rec    tasks.Record
	server *server
	asked  <-chan os.Signal
	over   bool // the shim has asked to end
	init   *supervise.Process
}

// waitForEnd waits for the end of the container's first process. ended is false if that process
// never existed.
func (w *watch) waitForEnd() (code int, ended bool) {
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
	}.Wait()
	select {
	case <-w.asked: // the container may be gone by force, and its end was seen here first
		w.over = true
	default:
	}
	code, _ = w.init.ExitCode(end)
	return code, true
}

func (w *watch) sendSignal(sig syscall.Signal) bool {
	_ = w.init.SendAsInit(sig) // it may have ended meanwhile
	return true
}

// awaitShim waits until the shim has forwarded the rest of a terminal's output, which is certain
// once the container was removed. A container that is kept for a restart isn't removed: the wait
// ends after flushTimeout.
func (w *watch) awaitShim() {
	select {
	case <-w.asked:
		w.over = true
	case <-time.After(flushTimeout):
	}
}

// findInit looks for the first process, whose id the runtime writes into the bundle. It is
// the shim's child.
func (w *watch) findInit() bool {
	pid, err := smallfile.Int("init.pid")
	if err != nil || pid <= 0 {
		return false
	}
	p, err := supervise.OpenProcess(w.Store.Proc, pid)
	if err != nil {
		return false
	}
	if parent, err := process.Parent(cmp.Or(w.Store.Proc, "/proc"), pid); err != nil || parent != w.Shim {
		p.Close() // of another time
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
func (w *watch) setTerminalSize(size *unix.Winsize) {
	path := filepath.Join(cmp.Or(w.Store.Proc, "/proc"), strconv.Itoa(w.init.PID), "fd/0")
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return
	}
	const first, last = 136, 143 // of the pseudoterminals' majors
	if major := unix.Major(st.Rdev); st.Mode&unix.S_IFMT != unix.S_IFCHR || major < first || major > last {
		return
	}
	if fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
		_ = errors.Join(unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, size), unix.Close(fd)) // it may be gone
	}
}
