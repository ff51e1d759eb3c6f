package monitor

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// input is the task's standard input, fed by attached clients. Their bytes wait in queue, so
// that a task that doesn't read blocks no client.
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

// writeQueue returns after stop, once a blocked Write has returned because the file was closed.
// The caller of newInput closes the file.
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

// enqueue adds bytes of a client to the queue. If the queue is full it waits. It returns false
// if the client's connection was closed meanwhile.
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
	closed, err := isReady(conn, unix.POLLRDHUP)
	return closed || err != nil
}
