package monitor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/ociruntime"
)

// children are all whose parent this process is or has become: runtimes, the container's
// init, and what runtimes leave behind. They are buried here and nowhere else.
type children struct {
	mu   sync.Mutex
	dead map[int]unix.WaitStatus
}

func newChildren() *children { return &children{dead: map[int]unix.WaitStatus{}} }

// deaths tells whenever somebody may have died: each who waits has a channel of his own,
// for whom he waits for may be buried by another.
func deaths() chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGCHLD)
	return c
}

// bury collects all who have died.
func (c *children) bury() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buryLocked()
}

func (c *children) buryLocked() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		c.dead[pid] = status
	}
}

// died says how a child did, once.
func (c *children) died(pid int) (status unix.WaitStatus, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buryLocked()
	status, ok = c.dead[pid]
	delete(c.dead, pid)
	return status, ok
}

// buried says whether a child is known to have died, of which died wasn't asked.
func (c *children) buried(pid int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.dead[pid]
	return ok
}

// forget drops those whose death nobody asks for.
func (c *children) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.dead)
}

// run runs a program to its end, which is neither a runtime nor a container's init. Whoever
// buries all may be the one who learns of it.
func (c *children) run(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	err := cmd.Wait()
	if !errors.Is(err, unix.ECHILD) {
		return err
	}
	status, ok := c.died(cmd.Process.Pid)
	switch {
	case !ok:
		return err
	case status != 0:
		return exitError(status)
	}
	return nil
}

// exitError is how a program ended, if not well.
type exitError unix.WaitStatus

func (e exitError) Error() string {
	if s := unix.WaitStatus(e); s.Signaled() {
		return "ended by signal " + s.Signal().String()
	}
	return fmt.Sprintf("exit status %d", unix.WaitStatus(e).ExitStatus())
}

// ExitCode is -1 for one that was ended by a signal.
func (e exitError) ExitCode() int { return unix.WaitStatus(e).ExitStatus() }

// wait waits for a runtime that was started. Asked to end, it ends one that makes or starts
// a container (begins), and no other; so it does with one that is to start a container whose
// init has died.
func (m *monitor) wait(cmd *exec.Cmd, begins bool) error {
	pid := cmd.Process.Pid
	defer func() { _ = cmd.Process.Release() }() // only a handle
	var hopeless <-chan time.Time
	var asked chan string
	if begins {
		asked = m.asked
	}
	for {
		if status, ok := m.children.died(pid); ok {
			if status == 0 {
				return nil
			}
			return exitError(status)
		}
		if hopeless == nil && m.starting && m.initDied() {
			hopeless = time.After(startPatience)
		}
		select {
		case <-m.deaths:
			continue
		case reason := <-asked:
			m.ending, m.reason = true, reason
		case <-hopeless:
		}
		m.starting = false
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
}

// startPatience is how long a runtime may go on starting a container whose init has
// died. A short command has often ended by then; only if the init never began one does
// the runtime wait for ever.
const startPatience = 3 * time.Second

// run runs the runtime to its end, and returns what it says.
func (m *monitor) run(words ...string) (string, error) {
	cmd := m.runtime.Command(words...)
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	cmd, err = m.launch(cmd, (*exec.Cmd).Start)
	w.Close()
	if err != nil {
		return "", err
	}
	err = m.wait(cmd, words[0] == "start")
	return said(r), err
}

// launch starts a runtime, in the mount namespace that has the task's root.
func (m *monitor) launch(cmd *exec.Cmd, start func(*exec.Cmd) error) (started *exec.Cmd, err error) {
	m.there(func() {
		program := m.program
		if program == (ociruntime.Program{}) {
			program = ociruntime.Seal(cmd.Path)
			defer program.Close()
		}
		started, err = program.Start(cmd, start)
	})
	return started, err
}

// maxSaid is how much of what a runtime says is kept: a pipe holds that much.
const maxSaid = 16 << 10

// said reads what is in a pipe, and waits for nobody who still has its other end.
func said(r *os.File) string {
	raw, err := r.SyscallConn()
	if err != nil {
		return ""
	}
	buf := make([]byte, maxSaid)
	n := 0
	err = raw.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), buf)
		return true
	})
	if err != nil || n < 0 {
		return ""
	}
	return strings.Join(strings.Fields(string(bytes.TrimSpace(buf[:n]))), " ")
}
