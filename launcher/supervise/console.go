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

// console relays a container's terminal, whose master side this process holds. It copies all output
// to Streams.Stdout and, with Interactive, the input from Streams.Stdin. The terminal hangs up when
// this process dies.
//
// It is for crun: a crun that relays a terminal itself may end before it has read all output. runc
// relays all of it, but has no option to leave the relay to its caller.
type console struct {
	Streams
	socket *ociruntime.Console
	quit   int           // an eventfd that ends copyInput
	done   chan struct{} // closed when all output was copied
	err    error         // of writing the output; valid after done

	mu     sync.Mutex
	master *os.File    // nil before the runtime has sent it, and after release
	before *term.State // of the terminal at Stdin, to be restored
	ended  bool        // the runtime has ended
}

// relaysTerminal reports whether a runtime relays a container's terminal itself.
func relaysTerminal(runtime string) bool { return filepath.Base(runtime) != "crun" }

// newConsole creates a socket in dir, which only root can enter, and relays the terminal that a
// runtime sends to it.
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

// connect makes a runtime send the terminal to the socket. The last argument of cmd is the
// container's id.
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
		c.err = writeError(c.Stdout, copyRest(c.Stdout, master, maxConsoleOutput))
		return
	}
	_ = c.resize() // the size may have changed since the runtime was told, and there may be none
	typed := make(chan struct{})
	go func() { defer close(typed); c.copyInput(master) }()
	c.err = writeError(c.Stdout, copyOutput(c.Stdout, master, maxConsoleOutput))
	_, _ = unix.Write(c.quit, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // the first write to an eventfd doesn't fail
	_ = master.SetWriteDeadline(pastDeadline())               // it is open
	<-typed
}

// start returns false if the runtime has already ended. Otherwise it puts the terminal at Stdin into
// raw mode.
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

// release closes the master side. Processes that have the terminal open get EIO from then on.
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

// consoleBufferSize is the size in bytes of one read of the input.
const consoleBufferSize = 4 << 10

// maxConsoleOutput returns how many bytes are read once the runtime has ended, more than the kernel
// buffers for a terminal: other processes may go on writing to it.
func maxConsoleOutput(int) (int, error) { return 64 << 10, nil }

// copyInput copies the input until the process has ended or the terminal at Stdin has hung up.
func (c *console) copyInput(master *os.File) {
	if !c.Interactive {
		return
	}
	from := int(c.Stdin.Fd())
	buf := make([]byte, consoleBufferSize)
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

// resize sets the size of the container's terminal, once the runtime has sent it, to that of this
// process's.
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

// finish waits until all output that is in the terminal was written. It is called when the runtime
// has ended or will never start. A signal that asks to end also ends the wait.
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
				return nil // run may still be writing, and closes the rest
			}
		}
	}
}

func (c *console) runtimeEnded() {
	c.socket.StopWaiting()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended = true; c.master != nil {
		_ = c.master.SetDeadline(pastDeadline()) // it is open
	}
}
