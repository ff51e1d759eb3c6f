package monitor

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// input is the task's standard input, written by attached clients. It is queued, so that a task that
// doesn't read doesn't block clients until the queue is full.
type input struct {
	file  *os.File
	queue chan []byte
	over  chan struct{}
}

// maxQueuedInput is how many frames are queued for a task that doesn't read.
const maxQueuedInput = 16

func newInput(f *os.File) *input {
	i := &input{file: f, queue: make(chan []byte, maxQueuedInput), over: make(chan struct{})}
	go i.writeQueue()
	return i
}

// writeQueue returns after stop. The caller of newInput must close the file to end a blocked Write.
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

// enqueue adds bytes of a client to the queue, and waits while the queue is full. It returns false if
// the client's connection was closed meanwhile.
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

// hasHungUp reports whether the other side of a connection is closed.
func hasHungUp(conn *os.File) bool {
	closed, err := isReady(conn, unix.POLLRDHUP)
	return closed || err != nil
}
