package monitor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/logs"
)

// copier writes the task's output to the log and sends it to the attached clients. One
// goroutine does all of it, on a thread that waits in poll; other goroutines use call.
//
// The content of a pipe is duplicated (tee), logged, and only then consumed. A monitor that
// is killed at any moment therefore loses no output: it is in the log or still in the pipe.
// The next monitor may log one piece twice.
type copier struct {
	log      *logs.Writer
	send     func(logs.Stream, []byte)
	sources  []source
	todo     chan func()
	wakePipe [2]int // a pipe
	teePipe  [2]int // a pipe for copies (tee) of the others' content
	buf      []byte
	full     bool // the log couldn't be written
	// callers want something of the copier's goroutine, and since when they wait.
	callers    atomic.Int32
	since      time.Time
	viewerGone atomic.Bool // nobody looks any more
}

// source is a pipe that the task writes to, or its terminal.
type source struct {
	file     *os.File
	fd       int
	stream   logs.Stream
	terminal bool
}

const (
	// pieceSize is how much is copied at once: what a pipe of few pages can hold.
	pieceSize = 16 << 10
	// pipeSize is how much a task can write while nobody reads.
	pipeSize = 1 << 20
)

func newCopier(log *logs.Writer, send func(logs.Stream, []byte)) (*copier, error) {
	c := &copier{log: log, send: send, todo: make(chan func()), buf: make([]byte, max(pieceSize, os.Getpagesize()))}
	for _, pipe := range []*[2]int{&c.wakePipe, &c.teePipe} {
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			return nil, fmt.Errorf("make a pipe for output: %w", err)
		}
	}
	// With as many pages as there is room in buf, no page is ever seen in part: of a
	// packet, which is at most a page, the rest would be lost.
	if _, err := unix.FcntlInt(uintptr(c.teePipe[1]), unix.F_SETPIPE_SZ, len(c.buf)); err != nil {
		return nil, fmt.Errorf("make a pipe for output: %w", err)
	}
	log.WaitForReaders(c.throttle)
	go c.copyLoop()
	return c, nil
}

// call has the copier's goroutine call f, and waits for it.
func (c *copier) call(f func()) {
	c.callers.Add(1)
	defer c.callers.Add(-1)
	done := make(chan struct{})
	call := func() { f(); close(done) }
	for {
		// The byte is written before the call is sent: the goroutine that it wakes waits for the call.
		_, err := unix.Write(c.wakePipe[1], []byte{0})
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	c.todo <- call
	<-done
}

// throttle waits a little for who looks at a gang, and is too slow for what it writes:
// meanwhile the pipes fill, and the task waits, too. The end of a task isn't held up for long.
func (c *copier) throttle() bool {
	const pause = 5 * time.Millisecond
	switch {
	case c.viewerGone.Load():
		return false
	case c.callers.Load() == 0:
		c.since = time.Time{}
	case c.since.IsZero():
		c.since = time.Now()
	case time.Since(c.since) > killTimeout:
		return false
	}
	time.Sleep(pause)
	return true
}

// addPipe adds the pipe at path, which is opened at both ends: it never ends.
func (c *copier) addPipe(s logs.Stream, path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	// Where it isn't allowed the pipe has its usual 64 KiB.
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeSize)
	c.call(func() { c.sources = append(c.sources, source{fd: fd, stream: s}) })
	return nil
}

// addStream adds the reading end of a pipe, which ends when nobody can write to it.
func (c *copier) addStream(s logs.Stream, from *os.File) {
	fd := int(from.Fd())
	_ = unix.SetNonblock(fd, true) // or else it is only read when there is something
	c.call(func() { c.sources = append(c.sources, source{file: from, fd: fd, stream: s}) })
}

// addTerminal adds the master side of a terminal, until removeTerminal.
func (c *copier) addTerminal(s logs.Stream, master *os.File) error {
	// A duplicate: closing master must not affect the poll of this descriptor.
	raw, err := master.SyscallConn()
	if err != nil {
		return err
	}
	fd := -1
	var failed error
	err = raw.Control(func(from uintptr) { fd, failed = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("duplicate terminal: %w", err)
	}
	c.call(func() { c.sources = append(c.sources, source{file: master, fd: fd, stream: s, terminal: true}) })
	return nil
}

func (c *copier) removeTerminal(master *os.File) {
	c.call(func() {
		c.sources = slices.DeleteFunc(c.sources, func(s source) bool {
			if s.file != master {
				return false
			}
			_ = unix.Close(s.fd) // a terminal that has hung up
			return true
		})
	})
}

// copyRest copies all that is there. When no process of the task is left, that's all.
func (c *copier) copyRest() {
	c.call(func() {
		for i := range c.sources {
			for n := 0; n < 2*pipeSize/pieceSize+1000 && c.copyPiece(&c.sources[i]); n++ {
			}
		}
	})
}

func (c *copier) copyLoop() {
	for {
		fds := []unix.PollFd{{Fd: int32(c.wakePipe[0]), Events: unix.POLLIN}}
		for _, s := range c.sources {
			if s.fd >= 0 {
				fds = append(fds, unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN})
			}
		}
		if _, err := unix.Poll(fds, -1); err != nil {
			continue // interrupted
		}
		if fds[0].Revents != 0 {
			c.runCall()
			continue // the sources may be others now
		}
		for i := range c.sources {
			c.copyPiece(&c.sources[i])
		}
	}
}

// runCall takes one call of another goroutine and runs it.
func (c *copier) runCall() {
	var one [1]byte
	if n, err := unix.Read(c.wakePipe[0], one[:]); n == 1 && err == nil {
		(<-c.todo)()
	}
}

// copyPiece copies one piece. It returns false if the source has none.
func (c *copier) copyPiece(s *source) bool {
	if s.fd < 0 {
		return false
	}
	n := c.readPiece(s)
	if n <= 0 {
		return false
	}
	c.writeDown(s.stream, c.buf[:n])
	for taken := 0; taken < n && !s.terminal; {
		k, err := unix.Read(s.fd, c.buf[:n-taken])
		if err != nil && !errors.Is(err, unix.EINTR) {
			break // somebody else has read from it, who may
		}
		taken += max(k, 0)
	}
	return true
}

// readPiece reads a piece and leaves it in its pipe. From a terminal it can only be consumed.
func (c *copier) readPiece(s *source) int {
	if s.terminal {
		n, err := unix.Read(s.fd, c.buf)
		if errors.Is(err, unix.EIO) {
			_ = unix.Close(s.fd) // the task has let go of its terminal
			s.fd = -1
		}
		if err != nil {
			return 0
		}
		return n
	}
	n, err := unix.Tee(s.fd, c.teePipe[1], len(c.buf), unix.SPLICE_F_NONBLOCK)
	if n == 0 && err == nil { // nobody can write to it any more
		_ = s.file.Close() // only read from
		s.fd = -1
	}
	if n <= 0 || err != nil {
		return 0
	}
	return c.readTeed(int(n))
}

// readTeed reads all bytes from teePipe. If the task has set O_DIRECT on its pipe, each read
// returns one packet. Bytes that stayed behind would be taken for the other stream's.
func (c *copier) readTeed(all int) (n int) {
	for n < all {
		k, err := unix.Read(c.teePipe[0], c.buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || k == 0 {
			break // there is never less than tee said
		}
		n += k
	}
	return n
}

// writeDown logs data and sends it to the clients. If the log can't be written, the data is
// dropped from it: the task is never blocked by a full disk.
func (c *copier) writeDown(stream logs.Stream, data []byte) {
	err := c.log.Write(time.Now(), stream, data)
	if err != nil && !c.full {
		logOwn(os.Stderr, err)
	}
	c.full = err != nil
	c.send(stream, data)
}
