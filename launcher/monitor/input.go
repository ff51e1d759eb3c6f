package monitor

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// input is what a task reads from those who attach. What is typed waits in its queue, and
// not in whoever has typed it: a task needn't read.
type input struct {
	file  *os.File
	queue chan []byte
	over  chan struct{}
}

// maxQueuedInput is how many frames wait for a task that doesn't read.
const maxQueuedInput = 16

func newInput(f *os.File) *input {
	i := &input{file: f, queue: make(chan []byte, maxQueuedInput), over: make(chan struct{})}
	go i.writeQueue()
	return i
}

// writeQueue ends with end, once the file is closed, which is who opened it's business.
func (i *input) writeQueue() {
	for {
		select {
		case <-i.over:
			return
		case data := <-i.queue:
			_, _ = i.file.Write(data) // the terminal may have been hung up
		}
	}
}

func (i *input) stop() { close(i.over) }

// enqueue takes what a client has typed. Where there is no room it waits as long as the client
// does; it is false if he has gone.
func (i *input) enqueue(data []byte, from *os.File) bool {
	data = append([]byte(nil), data...)
	for {
		select {
		case i.queue <- data:
			return true
		case <-i.over:
			return true
		case <-time.After(time.Second):
			if hasHungUp(from) {
				return false
			}
		}
	}
}

// hasHungUp says whether the other side of a connection is closed.
func hasHungUp(conn *os.File) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	closed := false
	err = raw.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}, 0)
		closed = n > 0 && err == nil
	})
	return closed || err != nil
}
