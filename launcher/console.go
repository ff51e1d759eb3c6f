package launcher

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/berth-gpu/berth/launcher/ociruntime"
)

// console is a terminal of a task's whose other side is here: what the task writes is
// copied to where its output is seen, to the last byte, and what is typed is copied to
// the task. When this process dies, the terminal hangs up.
//
// It is for crun, which as long as it relays a terminal itself may end before it has read
// all that is in it. runc does that well, and wouldn't leave it to others.
type console struct {
	socket *ociruntime.Console
	o      Options
	quit   int           // an eventfd, for who waits for what is typed
	done   chan struct{} // closed when nothing more will come out
	err    error         // of writing what came; known then

	mu     sync.Mutex
	master *os.File    // nil before it came, and after
	before *term.State // of the terminal where is typed, to be restored
	ended  bool        // the runtime has
}

// relays says whether a runtime would rather not be left alone with a terminal.
func relays(runtime string) bool { return filepath.Base(runtime) != "crun" }

// newConsole makes one for a runtime that is told of it by the Path of its socket, which is
// in a directory of the task's.
func (o Options) newConsole(dir string) (*console, error) {
	quit, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a terminal: %w", err)
	}
	socket, err := ociruntime.NewConsole(dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a terminal: %w", err), unix.Close(quit))
	}
	c := &console{socket: socket, o: o, quit: quit, done: make(chan struct{})}
	go c.run()
	return c, nil
}

func (c *console) run() {
	defer close(c.done)
	master, err := c.socket.Terminal()
	if err != nil {
		return // the runtime has failed, and tells why
	}
	defer c.release(master)
	if !c.begin(master) {
		c.err = c.rest(master)
		return
	}
	_ = c.resize() // it may have changed since the runtime was told, and there may be none
	typed := make(chan struct{})
	go func() { defer close(typed); c.input(master) }()
	c.err = c.copy(master)
	_, _ = unix.Write(c.quit, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // never fails: it is the first
	_ = master.SetWriteDeadline(past())                       // it is open
	<-typed
}

// past is a time at which nobody waits any more.
func past() time.Time { return time.Unix(1, 0) }

// begin is false when the runtime has ended already. Otherwise what is typed is the
// task's from now on, each key as it is.
func (c *console) begin(master *os.File) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.master = master
	if c.o.Interactive {
		c.before, _ = term.MakeRaw(int(c.o.Stdin.Fd())) // one that can't be is as it is
	}
	return true
}

// release lets go of the terminal: what is left of the task learns that nobody reads.
func (c *console) release(master *os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = master.Close() // nothing is kept there
	c.master = nil
	c.restore()
}

// restore puts the terminal where was typed back to what it was.
func (c *console) restore() {
	if c.before != nil {
		_ = term.Restore(int(c.o.Stdin.Fd()), c.before) // it may be gone
	}
	c.before = nil
}

// copy copies what comes out until nobody has the terminal any more, or what is in it when
// the runtime has ended.
func (c *console) copy(master *os.File) error {
	buf := make([]byte, consolePiece)
	for {
		n, err := master.Read(buf)
		if n > 0 {
			if err := writeAll(c.o.Stdout, buf[:n]); err != nil {
				return c.unread(err)
			}
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return c.rest(master)
		case err != nil:
			return nil // everybody has let go of it
		}
	}
}

// A terminal gives at most consolePiece at once, and keeps less than consoleRoom that
// nobody has read.
const (
	consolePiece = 4 << 10
	consoleRoom  = 64 << 10
)

// rest copies what is in the terminal, and not all that may come meanwhile.
func (c *console) rest(master *os.File) error {
	raw, err := master.SyscallConn()
	if err != nil {
		return err
	}
	buf := make([]byte, consolePiece)
	var failed error
	err = raw.Control(func(fd uintptr) {
		for left := consoleRoom; left > 0 && failed == nil; {
			n, err := unix.Read(int(fd), buf)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n <= 0 || err != nil {
				return // there is nothing more
			}
			left -= n
			failed = writeAll(c.o.Stdout, buf[:n])
		}
	})
	return errors.Join(err, c.unread(failed))
}

// unread is no error where the output is a terminal that has gone, or a pipe that nobody
// reads any more.
func (c *console) unread(err error) error {
	if err == nil || errors.Is(err, unix.EPIPE) || isTerminal(c.o.Stdout) {
		return nil
	}
	return fmt.Errorf("write %s: %w", c.o.Stdout.Name(), err)
}

// input copies what is typed until the task has ended, or the terminal where it is typed
// has gone.
func (c *console) input(master *os.File) {
	if !c.o.Interactive {
		return
	}
	from := int(c.o.Stdin.Fd())
	buf := make([]byte, consolePiece)
	for {
		fds := []unix.PollFd{{Fd: int32(from), Events: unix.POLLIN}, {Fd: int32(c.quit), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); errors.Is(err, unix.EINTR) {
			continue
		}
		if fds[1].Revents != 0 {
			return
		}
		n, err := unix.Read(from, buf)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if n <= 0 || err != nil {
			return
		}
		if _, err := master.Write(buf[:n]); err != nil {
			return // the task has ended
		}
	}
}

// resize gives the terminal the size of ours, if it has come.
func (c *console) resize() error {
	size, err := c.o.windowSize()
	if err != nil {
		return fmt.Errorf("read terminal's size: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.master == nil {
		return nil
	}
	raw, err := c.master.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) })
	return errors.Join(err, failed)
}

// give has the runtime hand the terminal on. What it is given itself is its own alone.
func (c *console) give(cmd *exec.Cmd) {
	id := cmd.Args[len(cmd.Args)-1]
	cmd.Args = append(cmd.Args[:len(cmd.Args)-1], "--console-socket", c.socket.Path, id)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what is typed is nothing to it
	cmd.Stderr = c.o.Stderr
}

// finish is called when the runtime has ended, or will never begin: then what is in the
// terminal is all that comes. A signal that asks to end has it not waited for.
func (c *console) finish(s *signals) error {
	c.end()
	for {
		select {
		case <-c.done:
			c.socket.Close()
			return errors.Join(c.err, unix.Close(c.quit))
		case sig := <-s.task:
			if asksToEnd(sig) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.restore()
				return nil // who writes still has all the rest
			}
		}
	}
}

func (c *console) end() {
	c.socket.Hurry()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended = true; c.master != nil {
		_ = c.master.SetDeadline(past()) // it is open
	}
}
