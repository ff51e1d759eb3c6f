package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/berth-gpu/berth/launcher/ociruntime"
)

// console relays a container's terminal, whose master side this process holds: what comes
// out is copied to Streams.Stdout, to the last byte, and with Interactive what is typed at
// Streams.Stdin is copied in. When this process dies, the terminal hangs up.
//
// It is for crun, which may end before it has read all that is in a terminal that it relays
// itself. runc relays all of it, and wouldn't leave that to others.
type console struct {
	Streams
	socket *ociruntime.Console
	quit   int           // an eventfd that ends copyInput
	done   chan struct{} // closed when nothing more will come out
	err    error         // of writing what came out; known then

	mu     sync.Mutex
	master *os.File    // nil before it came, and after
	before *term.State // of the terminal at Stdin, to be restored
	ended  bool        // the runtime has ended
}

// relaysTerminal says whether a runtime is to relay a terminal itself.
func relaysTerminal(runtime string) bool { return filepath.Base(runtime) != "crun" }

// newConsole waits for a terminal at a socket in a directory that only root can enter.
func (s Streams) newConsole(dir string) (*console, error) {
	quit, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a terminal: %w", err)
	}
	socket, err := ociruntime.NewConsole(dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a terminal: %w", err), unix.Close(quit))
	}
	c := &console{Streams: s, socket: socket, quit: quit, done: make(chan struct{})}
	go c.run()
	return c, nil
}

// connect has a runtime send the terminal that it makes to the socket. id is the last word
// of its command line.
func (c *console) connect(cmd *exec.Cmd) {
	last := len(cmd.Args) - 1
	cmd.Args = append(cmd.Args[:last:last], "--console-socket", c.socket.Path, cmd.Args[last])
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C isn't for the runtime
	cmd.Stderr = c.Stderr
}

func (c *console) run() {
	defer close(c.done)
	master, err := c.socket.Terminal()
	if err != nil {
		return // the runtime has failed, and its log says why
	}
	defer c.release(master)
	if !c.start(master) {
		c.err = writeError(c.Stdout, copyRest(c.Stdout, master, consoleRoom))
		return
	}
	_ = c.resize() // the size may have changed since the runtime was told, and there may be none
	typed := make(chan struct{})
	go func() { defer close(typed); c.copyInput(master) }()
	c.err = writeError(c.Stdout, copyOutput(c.Stdout, master, consoleRoom))
	_, _ = unix.Write(c.quit, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // the first write to an eventfd doesn't fail
	_ = master.SetWriteDeadline(longAgo())                    // it is open
	<-typed
}

// start is false when the runtime has ended already. Otherwise what is typed is the
// process's from now on, key by key.
func (c *console) start(master *os.File) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.master = master
	if c.Interactive {
		c.before, _ = term.MakeRaw(int(c.Stdin.Fd())) // nil if that can't be done
	}
	return true
}

// release closes the terminal: processes that still have it get EIO.
func (c *console) release(master *os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = master.Close() // nothing is kept there
	c.master = nil
	c.restoreLocked()
}

// restoreLocked restores the terminal at Stdin.
func (c *console) restoreLocked() {
	if c.before != nil {
		_ = term.Restore(int(c.Stdin.Fd()), c.before) // it may be gone
	}
	c.before = nil
}

// consolePiece is more than people type at once.
const consolePiece = 4 << 10

// consoleRoom is more than a terminal keeps that nobody has read. Others may go on writing to it.
func consoleRoom(int) (int, error) { return 64 << 10, nil }

// copyInput copies what is typed until the process has ended, or the terminal at Stdin has
// gone.
func (c *console) copyInput(master *os.File) {
	if !c.Interactive {
		return
	}
	from := int(c.Stdin.Fd())
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
			return // the process has ended
		}
	}
}

// resize gives the terminal the size of ours, if it has come.
func (c *console) resize() error {
	size, err := c.windowSize()
	if err != nil {
		return fmt.Errorf("read terminal's size: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.master == nil {
		return nil
	}
	return SetTerminalSize(c.master, size)
}

// finish is called when the runtime has ended, or will never start: then what is in the
// terminal is all that comes, and finish waits until it is written. A signal that asks to
// end ends the waiting, too.
func (c *console) finish(s *Signals) error {
	c.runtimeEnded()
	for {
		select {
		case <-c.done:
			c.socket.Close()
			return errors.Join(c.err, unix.Close(c.quit))
		case sig := <-s.C:
			if AsksToEnd(sig) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.restoreLocked()
				return nil // run may still be writing, and has the rest
			}
		}
	}
}

func (c *console) runtimeEnded() {
	c.socket.StopWaiting()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended = true; c.master != nil {
		_ = c.master.SetDeadline(longAgo()) // it is open
	}
}
