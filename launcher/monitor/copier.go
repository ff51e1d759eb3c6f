package monitor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/launcher/logs"
)

// copier writes the task's output to the log and sends it to the attached clients. One goroutine
// copies, on a thread that waits in poll; other goroutines use call.
//
// The content of a pipe is duplicated (tee), logged, and only then consumed. Output is therefore
// never lost when the monitor is killed: it is in the log or still in the pipe. The next monitor may
// log one piece twice.
type copier struct {
	log      *logs.Writer
	send     func(logs.Stream, []byte)
	sources  []source
	calls    chan func()
	wakePipe [2]int // a pipe
	teePipe  [2]int // a pipe for copies (tee) of the others' content
	buf      []byte
	full     bool // the last write to the log has failed
	// callers is the number of goroutines that wait in call, and waiting since when throttle has seen
	// one, zero without one.
	callers    atomic.Int32
	waiting    time.Time
	viewerGone atomic.Bool // the attached berth run has ended
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
	// pipeSize is how many bytes a task can write before the copier reads them.
	pipeSize = 1 << 20
)

func newCopier(log *logs.Writer, send func(logs.Stream, []byte)) (*copier, error) {
	c := &copier{log: log, send: send, calls: make(chan func()), buf: make([]byte, max(pieceSize, os.Getpagesize()))}
	for _, pipe := range []*[2]int{&c.wakePipe, &c.teePipe} {
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			return nil, fmt.Errorf("make a pipe for output: %w", err)
		}
	}
	// The pipe gets as many pages as fit into buf. tee then duplicates whole pages only: the rest of a
	// packet (O_DIRECT), which is at most a page, would be lost.
	size, err := unix.FcntlInt(uintptr(c.teePipe[1]), unix.F_SETPIPE_SZ, len(c.buf))
	if errors.Is(err, unix.EPERM) { // a user with many pipes: it has few pages already
		size, err = unix.FcntlInt(uintptr(c.teePipe[1]), unix.F_GETPIPE_SZ, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("make a pipe for output: %w", err)
	}
	if size > len(c.buf) {
		c.buf = make([]byte, size)
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
	c.calls <- call
	<-done
}

// throttle pauses while the attached berth run of a gang lags behind. The task's pipes fill
// meanwhile, so the task waits too. It returns false once that berth run has ended, or if another
// goroutine has waited in call for killTimeout, so that it doesn't delay a task's end for longer.
func (c *copier) throttle() bool {
	const pause = 5 * time.Millisecond
	switch {
	case c.viewerGone.Load():
		return false
	case c.callers.Load() == 0:
		c.waiting = time.Time{}
	case c.waiting.IsZero():
		c.waiting = time.Now()
	case time.Since(c.waiting) > killTimeout:
		return false
	}
	time.Sleep(pause)
	return true
}

// addPipe adds the FIFO at path. It is opened for reading and writing, so it has no end of file.
func (c *copier) addPipe(s logs.Stream, path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	// Other users than root have 64 MiB for all their pipes (fs.pipe-user-pages-soft), and stay with the default of 64 KiB.
	if !userns.IsInside() {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeSize) // an error leaves it at the default, too
	}
	c.call(func() { c.sources = append(c.sources, source{fd: fd, stream: s}) })
	return nil
}

// addStream adds the read end of a pipe, until all write ends are closed.
func (c *copier) addStream(s logs.Stream, from *os.File) {
	fd := int(from.Fd())
	_ = unix.SetNonblock(fd, true) // on an error reads still don't block, because they follow poll
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
			_ = unix.Close(s.fd) // a duplicate
			return true
		})
	})
}

// copyRest copies all output that is in the pipes. It is called when no process of the task is left.
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
			continue // EINTR
		}
		if fds[0].Revents != 0 {
			c.runCall()
			continue // the call may have changed the sources
		}
		for i := range c.sources {
			c.copyPiece(&c.sources[i])
		}
	}
}

// runCall runs one call of another goroutine.
func (c *copier) runCall() {
	var one [1]byte
	if n, err := unix.Read(c.wakePipe[0], one[:]); n == 1 && err == nil {
		(<-c.calls)()
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
	c.logPiece(s.stream, c.buf[:n])
	for taken := 0; taken < n && !s.terminal; {
		k, err := unix.Read(s.fd, c.buf[:n-taken])
		if err != nil && !errors.Is(err, unix.EINTR) {
			break // another process has read from the pipe
		}
		taken += max(k, 0)
	}
	return true
}

// readPiece reads a piece into buf. A pipe keeps the piece, a terminal doesn't.
func (c *copier) readPiece(s *source) int {
	if s.terminal {
		n, err := unix.Read(s.fd, c.buf)
		if errors.Is(err, unix.EIO) {
			_ = unix.Close(s.fd) // the task has closed its terminal
			s.fd = -1
		}
		if err != nil {
			return 0
		}
		return n
	}
	n, err := unix.Tee(s.fd, c.teePipe[1], len(c.buf), unix.SPLICE_F_NONBLOCK)
	if n == 0 && err == nil { // all write ends are closed
		_ = s.file.Close() // it was only read
		s.fd = -1
	}
	if n <= 0 || err != nil {
		return 0
	}
	return c.readTeed(int(n))
}

// readTeed reads all bytes from teePipe; bytes that stay there would be logged for the other stream.
// If the task has set O_DIRECT on its pipe, each read returns one packet.
func (c *copier) readTeed(all int) (n int) {
	for n < all {
		k, err := unix.Read(c.teePipe[0], c.buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || k == 0 {
			break // doesn't happen: tee has written that many bytes
		}
		n += k
	}
	return n
}

// logPiece logs data and sends it to the clients. Data that can't be logged is dropped from the log,
// so that a full disk never blocks the task.
func (c *copier) logPiece(stream logs.Stream, data []byte) {
	err := c.log.Write(time.Now(), stream, data)
	if err != nil && !c.full {
		logOwn(os.Stderr, err)
	}
	c.full = err != nil
	c.send(stream, data)
}
