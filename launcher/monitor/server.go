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

// server serves the clients that are attached to a task. A client's input goes to the task's input
// queue, and the size of its terminal directly to the task's terminal. Signals go to the channel
// signals.
type server struct {
	listener *os.File
	path     string
	signals  chan syscall.Signal
	// resize sets the size of the task's terminal; nil if input is the terminal.
	resize func(*unix.Winsize)

	mu      sync.Mutex
	clients map[*client]bool
	input   *input // nil for a task without input
	ended   []byte // the frame with a gang's exit code; nil before the end
	over    bool   // no more clients are accepted
	writing sync.WaitGroup
}

// client is an attached client.
type client struct {
	conn  *os.File
	queue chan []byte // frames
	// quiet means that the client gets no output, only the task's end.
	quiet bool
	// awaitsGangEnd means that the client gets a gang's exit code before everything is released.
	awaitsGangEnd bool
}

// maxQueuedFrames is how many frames a client may lag behind: a megabyte of full ones. A slower client
// is disconnected, so that neither task nor log waits for it.
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
		if err != nil { // EMFILE, for instance
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

// writeClient writes the client's queue to its connection until the queue is closed.
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
			if !s.forwardInput(c, data) {
				s.dropClient(c, nil)
				return
			}
		case attach.Quiet:
			s.mu.Lock()
			c.quiet = true
			s.mu.Unlock()
		case attach.Ended:
			s.answerGangEnd(c)
		case attach.Resize:
			s.setSize(data)
		case attach.Signal:
			if len(data) == 1 {
				s.signals <- syscall.Signal(data[0])
			}
		}
	}
}

// setSize sets the size of the task's terminal to the size that a client has sent, before the
// client's next input.
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
		_ = supervise.SetTerminalSize(s.input.file, size) // the input may be a pipe
	}
}

// forwardInput queues a client's input for the task. It blocks while the queue is full; clients send
// signals and sizes on a second connection. It returns false if the client's connection was closed.
func (s *server) forwardInput(c *client, data []byte) bool {
	s.mu.Lock()
	in := s.input
	s.mu.Unlock()
	return in == nil || in.enqueue(data, c.conn)
}

// setInput sets the file for the task's input, nil for none.
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

// setResize sets the function that sets the size of the task's terminal, if the input isn't the
// terminal.
func (s *server) setResize(resize func(*unix.Winsize)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resize = resize
}

// broadcast queues output of the task for all attached clients.
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
			go func() { _ = attach.Write(c.conn, attach.Behind, nil) }() // blocks if the client doesn't read
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
		default: // the queue of a slow client is full: the frame is dropped
		}
	}
	close(c.queue)
}

// lifeEnded sends the exit code of a life to all clients but the quiet ones, which wait for the task's
// end.
func (s *server) lifeEnded(code int) {
	s.sendExit(code, func(c *client) bool { return !c.quiet })
}

// gangEnded sends a gang's exit code to the clients that have asked for it, and to those that will.
func (s *server) gangEnded(code int) {
	s.mu.Lock()
	s.ended = exitFrame(code)
	s.mu.Unlock()
	s.sendExit(code, func(c *client) bool { return c.awaitsGangEnd })
}

// answerGangEnd sends a gang's exit code to a client, now or when the gang ends.
func (s *server) answerGangEnd(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.awaitsGangEnd = true; s.ended != nil {
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

// shutDown sends the task's exit code to all clients and disconnects them.
func (s *server) shutDown(code int) {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.listener.Close()
	// Ids are unique, so the socket is this task's.
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
