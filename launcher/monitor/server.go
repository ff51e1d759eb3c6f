package monitor

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/attach"
	"github.com/berth-gpu/berth/launcher/logs"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// server serves those who attach to a task. What a client types goes to the task by its
// input's queue, and the size of its terminal at once; signals are for who supervises the
// task.
type server struct {
	listener *os.File
	path     string
	signals  chan syscall.Signal
	// resize gives the task's terminal a size; nil if the terminal is what the task reads.
	resize func(*unix.Winsize)

	mu      sync.Mutex
	clients map[*client]bool
	input   *input // nil without
	ended   []byte // the frame that tells how a gang ended; nil before
	over    bool   // nobody is taken any more
	writing sync.WaitGroup
}

// client is one that is attached.
type client struct {
	conn  *os.File
	queue chan []byte // frames
	// quiet wants to hear of the task's end alone.
	quiet bool
	// asks wants to hear how a gang ended, before all is given back.
	asks bool
}

// maxQueuedFrames is how many frames a client may be behind: with full ones, a megabyte. One
// that is more gets no more: neither the task nor the log waits for it.
const maxQueuedFrames = 64

func newServer(path string) (*server, error) {
	l, err := attach.Listen(path)
	if err != nil {
		return nil, err
	}
	s := &server{listener: l, path: path, signals: make(chan syscall.Signal), clients: map[*client]bool{}}
	go s.acceptClients()
	return s, nil
}

func (s *server) acceptClients() {
	for {
		conn, err := attach.Accept(s.listener)
		if err != nil && s.isClosed() {
			return
		}
		if err != nil { // no descriptors left, for instance
			time.Sleep(100 * time.Millisecond)
			continue
		}
		c := &client{conn: conn, queue: make(chan []byte, maxQueuedFrames)}
		s.mu.Lock()
		s.clients[c] = true
		s.writing.Add(1)
		s.mu.Unlock()
		go s.writeClient(c)
		go s.readClient(c)
	}
}

func (s *server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// writeClient ends with the client's queue.
func (s *server) writeClient(c *client) {
	defer s.writing.Done()
	failed := false
	for frame := range c.queue {
		if !failed {
			_, err := c.conn.Write(frame)
			failed = err != nil
		}
	}
	c.conn.Close()
}

func (s *server) readClient(c *client) {
	buf := make([]byte, attach.Max)
	for {
		kind, data, err := attach.Read(c.conn, buf)
		if err != nil {
			s.dropClient(c, nil)
			return
		}
		switch kind {
		case attach.Stdin:
			if !s.passInput(c, data) {
				s.dropClient(c, nil)
				return
			}
		case attach.Quiet:
			s.mu.Lock()
			c.quiet = true
			s.mu.Unlock()
		case attach.Ended:
			s.tellWhenEnded(c)
		case attach.Resize:
			s.setSize(data)
		case attach.Signal:
			if len(data) == 1 {
				s.signals <- syscall.Signal(data[0])
			}
		}
	}
}

// setSize gives the task's terminal the size that a client sends, before what that client
// types next.
func (s *server) setSize(data []byte) {
	if len(data) != 4 {
		return
	}
	size := &unix.Winsize{Row: binary.BigEndian.Uint16(data), Col: binary.BigEndian.Uint16(data[2:])}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.resize != nil:
		s.resize(size)
	case s.input != nil:
		_ = supervise.SetTerminalSize(s.input.file, size) // it may be no terminal
	}
}

// passInput forwards a client's input. If the task doesn't read, the client blocks in the end;
// clients send signals and sizes on a second connection. It returns false if the client's
// connection was closed.
func (s *server) passInput(c *client, data []byte) bool {
	s.mu.Lock()
	in := s.input
	s.mu.Unlock()
	return in == nil || in.enqueue(data, c.conn)
}

// setInput says what the task reads, nil if nothing any more.
func (s *server) setInput(f *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.input != nil {
		s.input.stop()
	}
	if s.input = nil; f != nil {
		s.input = newInput(f)
	}
}

// setResize says who gives the task's terminal a size, if not its input.
func (s *server) setResize(resize func(*unix.Winsize)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resize = resize
}

// broadcast hands what the task wrote to all who are attached.
func (s *server) broadcast(stream logs.Stream, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.clients) == 0 {
		return
	}
	kind := attach.Stdout
	if stream == logs.Stderr {
		kind = attach.Stderr
	}
	frame := attach.Append(nil, kind, data)
	for c := range s.clients {
		if c.quiet {
			continue
		}
		select {
		case c.queue <- frame:
		default:
			s.dropLocked(c, nil)
			go func() { _ = attach.Write(c.conn, attach.Behind, nil) }() // it may never read it
		}
	}
}

func (s *server) dropClient(c *client, last []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(c, last)
}

// dropLocked sends a client its last frame and disconnects it.
func (s *server) dropLocked(c *client, last []byte) {
	if !s.clients[c] {
		return
	}
	delete(s.clients, c)
	if last != nil {
		select {
		case c.queue <- last:
		default: // it is behind, and doesn't get to know
		}
	}
	close(c.queue)
}

// lifeEnded tells those who are attached how a life ended; others wait for the task's end.
func (s *server) lifeEnded(code int) {
	s.sendExit(code, func(c *client) bool { return !c.quiet })
}

// gangEnded tells those who ask, now or later, how a gang ended.
func (s *server) gangEnded(code int) {
	s.mu.Lock()
	s.ended = exitFrame(code)
	s.mu.Unlock()
	s.sendExit(code, func(c *client) bool { return c.asks })
}

func (s *server) tellWhenEnded(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.asks = true; s.ended != nil {
		s.dropLocked(c, s.ended)
	}
}

func exitFrame(code int) []byte { return attach.Append(nil, attach.Exit, []byte{byte(code)}) }

func (s *server) sendExit(code int, which func(*client) bool) {
	frame := exitFrame(code)
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.clients {
		if which(c) {
			s.dropLocked(c, frame)
		}
	}
}

// flushTimeout is how long clients have to read their last frames.
const flushTimeout = 2 * time.Second

// shutDown tells all how the task ended, and that there will be no more.
func (s *server) shutDown(code int) {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.listener.Close()
	// The name may be another task's by now only if the id is.
	if err := unix.Unlink(s.path); err != nil && !errors.Is(err, unix.ENOENT) {
		logOwn(os.Stderr, err)
	}
	s.sendExit(code, func(*client) bool { return true })
	done := make(chan struct{})
	go func() { s.writing.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(flushTimeout):
	}
}
