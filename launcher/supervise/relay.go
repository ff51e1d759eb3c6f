package supervise

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"
)

// Relay copies the output of a process that another program, such as a shim of containerd, writes to named
// pipes. The program closes the pipes when no process has the output open any more. A process outside of
// the container may have got the output from the task, so Finish doesn't wait for that.
type Relay struct {
	// Broken gets why output can't be written, without waiting. The rest of that output is read and dropped.
	Broken chan<- string
	copies []*relayCopy
}

// After the process's end, its output counts as read once the pipes have been empty for relayQuiet, or once
// relayRest bytes were read: a pipe holds at most 1 MiB, unless a process with CAP_SYS_RESOURCE has enlarged it.
const (
	relayInterval = 10 * time.Millisecond
	relayQuiet    = 300 * time.Millisecond
	relayRest     = 2 << 20
)

// relayCopy copies one pipe.
type relayCopy struct {
	from, to *os.File
	read     atomic.Int64
	done     chan struct{} // closed at the end
}

// Start starts to copy a pipe that was opened without blocking. The other program must have opened the pipe.
func (r *Relay) Start(from, to *os.File) {
	c := &relayCopy{from: from, to: to, done: make(chan struct{})}
	r.copies = append(r.copies, c)
	go c.copyOutput(r.Broken)
}

func (c *relayCopy) copyOutput(broken chan<- string) {
	defer close(c.done)
	buf, drop := make([]byte, copySize), false
	for {
		n, err := c.from.Read(buf)
		c.read.Add(int64(n))
		if n > 0 && !drop {
			if err := writeAll(c.to, buf[:n]); err != nil {
				drop = true
				select {
				case broken <- "its output can't be written: " + err.Error():
				default: // it was told of the other output
				}
			}
		}
		switch {
		case drop && err != nil:
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = copyRest(c.to, c.from, countUnread) // the process has ended: an error can't be reported to it
			return
		case err != nil:
			return
		}
	}
}

func (c *relayCopy) hasEnded() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// Finish waits until all output was copied; the process has ended. It returns false if another process still
// has the output open, or if output was given up: after a signal that asks to end, or after drainTimeout if
// asked, which means that the process was asked to end.
func (r *Relay) Finish(s *Signals, asked bool) (complete bool) {
	var enough <-chan time.Time
	if asked {
		enough = time.After(drainTimeout)
	}
	tick := time.NewTicker(relayInterval)
	defer tick.Stop()
	complete = true
	before, quiet := r.sumRead(), time.Duration(0)
	last := before
	for {
		if r.hasEnded() {
			return complete
		}
		select {
		case <-enough:
			r.discardRest()
			return false
		case sig := <-s.C:
			if AsksToEnd(sig) {
				r.discardRest()
				return false
			}
		case <-tick.C:
		}
		switch now := r.sumRead(); {
		case now != last:
			last, quiet = now, 0
		case r.isEmpty():
			quiet += relayInterval
		}
		if complete && (quiet >= relayQuiet || r.sumRead()-before > relayRest) {
			complete = false
			for _, c := range r.copies {
				_ = c.from.SetReadDeadline(pastDeadline()) // an error means that the copy has ended
			}
		}
	}
}

func (r *Relay) hasEnded() bool {
	for _, c := range r.copies {
		if !c.hasEnded() {
			return false
		}
	}
	return true
}

func (r *Relay) sumRead() (sum int64) {
	for _, c := range r.copies {
		sum += c.read.Load()
	}
	return sum
}

// isEmpty reports whether the pipes that are still copied are empty.
func (r *Relay) isEmpty() bool {
	for _, c := range r.copies {
		if !c.hasEnded() && c.unreadBytes() > 0 {
			return false
		}
	}
	return true
}

func (c *relayCopy) unreadBytes() (n int) {
	raw, err := c.from.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { n, _ = countUnread(int(fd)) }) // an error means that it was closed
	return n
}

// discardRest reads the rest in the background, so that the other program isn't blocked by a full pipe.
func (r *Relay) discardRest() {
	for _, c := range r.copies {
		_ = c.from.SetReadDeadline(time.Time{}) // an error means that it was closed
		go io.Copy(io.Discard, c.from)          //nolint:errcheck // output that was given up
	}
}
