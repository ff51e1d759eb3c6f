package launcher

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// flow copies what comes out of a pipe of the task's into a file that the task isn't to
// have itself. It reads what is there and waits until it is written, so that a task is
// held up by a file as if it had it.
type flow struct {
	from, to *os.File
	terminal bool
	done     chan struct{} // closed at the end
	err      error         // known then
}

// flowSize is what a pipe holds: then lines that were written at once are seldom cut.
const flowSize = 64 << 10

func (c *flow) run() {
	defer close(c.done)
	if c.terminal {
		_, _ = io.Copy(c.to, c.from) // a terminal that has gone is noticed by who writes
	} else {
		c.err = c.copy()
	}
	_ = c.from.Close() // who goes on writing learns that nobody reads
}

// copy copies to the end, or to what is there when finish is called.
func (c *flow) copy() error {
	buf := make([]byte, flowSize)
	for {
		n, err := c.from.Read(buf)
		if n > 0 {
			if err := writeAll(c.to, buf[:n]); err != nil {
				return c.failed(err)
			}
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return c.failed(c.rest(buf))
		case err != nil:
			return nil
		}
	}
}

// failed is no error where the reader of a file that is a pipe has gone: that is the
// task's to know, as soon as it writes more.
func (c *flow) failed(err error) error {
	if err == nil || errors.Is(err, unix.EPIPE) {
		return nil
	}
	return fmt.Errorf("write %s: %w", c.to.Name(), err)
}

// finish has the copying end with what is in the pipe by now.
func (c *flow) finish() {
	if !c.terminal {
		_ = c.from.SetReadDeadline(time.Unix(1, 0)) // it may have come to its end
	}
}

// rest copies what is in the pipe, and nothing that comes meanwhile.
func (c *flow) rest(buf []byte) error {
	raw, err := c.from.SyscallConn()
	if err != nil {
		return err
	}
	e := raw.Control(func(fd uintptr) {
		var left int
		for left, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ); left > 0 && err == nil; {
			var n int
			if n, err = unix.Read(int(fd), buf[:min(left, len(buf))]); n <= 0 || err != nil {
				return
			}
			left -= n
			err = writeAll(c.to, buf[:n])
		}
	})
	return errors.Join(err, e)
}

// writeAll writes to a file of the caller's. os.File would end this process where the
// reader of one that is a pipe has gone.
func writeAll(to *os.File, data []byte) error {
	fd := int(to.Fd())
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		switch {
		case errors.Is(err, unix.EAGAIN):
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
		case err == nil && n == 0:
			return io.ErrShortWrite
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		data = data[max(n, 0):]
	}
	return nil
}

func newPipe(what string) (r, w *os.File, err error) {
	if r, w, err = os.Pipe(); err != nil {
		return nil, nil, fmt.Errorf("make a pipe for %s: %w", what, err)
	}
	return r, w, nil
}
