package supervise

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// drainTime is how long a terminal's output is waited for when processes of the task might
// have stayed that hold their end open.
const drainTime = time.Second

// output is what a process in a container writes to.
type output struct {
	stdout, stderr *os.File // the process's
	pipes          []*os.File
	copies         []*outputCopy
	console        *console // replaces all of these; nil without one
}

// openOutput gives the process a pipe in place of each file that it must not have, see
// fileKind. Two streams of one file are one pipe, so that the order of what is written
// stays.
func (s Streams) openOutput(n Null) (*output, error) {
	out := &output{stdout: s.Stdout, stderr: s.Stderr}
	if s.ownTerminal() {
		return out, nil // the runtime has to make it raw
	}
	var err error
	if out.stdout, err = out.replace(s, n, s.Stdout); err != nil {
		return nil, err
	}
	if out.stdout != s.Stdout && sameFile(s.Stdout, s.Stderr) {
		out.stderr = out.stdout
		return out, nil
	}
	if out.stderr, err = out.replace(s, n, s.Stderr); err != nil {
		out.closeProcessEnds()
		return nil, err
	}
	return out, nil
}

// replace returns what the process writes to that is to reach a file.
func (out *output) replace(s Streams, n Null, to *os.File) (*os.File, error) {
	switch kind := kindOf(to); {
	case kind == namelessFile, kind == nullFile && n.Replaced, kind == namedFile && s.Terminal:
		return to, nil // with a terminal, only the runtime has it
	case kind == nullFile && n.own != nil:
		return n.own, nil
	default:
		return out.addPipe(to, kind == terminalFile)
	}
}

func (out *output) addPipe(to *os.File, terminal bool) (*os.File, error) {
	r, w, err := newPipe("output")
	if err != nil {
		return nil, err
	}
	c := &outputCopy{from: r, to: to, terminal: terminal, done: make(chan struct{})}
	go c.run()
	out.pipes, out.copies = append(out.pipes, w), append(out.copies, c)
	return w, nil
}

// closeProcessEnds is called when the runtime has its own descriptors, or never will.
func (out *output) closeProcessEnds() {
	for _, w := range out.pipes {
		_ = w.Close() // nothing was written
	}
	out.pipes = nil
}

// drain waits until everything has come out. At a terminal that was stopped that can last:
// then a signal that asks to end ends it, too. allEnded says that no process of the task is
// left; otherwise what is written from now on isn't waited for. The error says what couldn't
// be written.
func (out *output) drain(s *Signals, allEnded bool) error {
	if out.console != nil {
		return out.console.finish(s)
	}
	var enough <-chan time.Time
	if !allEnded {
		enough = time.After(drainTime)
		for _, c := range out.copies {
			c.finish()
		}
	}
	var lost error
	for _, c := range out.copies {
		if !c.wait(s, enough) {
			break
		}
		lost = errors.Join(lost, c.err)
	}
	return lost
}

// outputCopy copies what comes out of a pipe into a file that the process isn't to have. It
// reads only what it then waits to write, so that a slow file holds the process up as if
// the process wrote to it.
type outputCopy struct {
	from, to *os.File
	terminal bool
	done     chan struct{} // closed at the end
	err      error         // known then
}

// copySize is what a pipe holds: so lines that were written at once are seldom divided.
const copySize = 64 << 10

func (c *outputCopy) run() {
	defer close(c.done)
	if c.terminal {
		_, _ = io.Copy(c.to, c.from) // a process that writes to a terminal that has gone gets EPIPE
	} else {
		c.err = c.copyAll()
	}
	_ = c.from.Close() // a process that goes on writing gets EPIPE
}

// copyAll copies to the end of the pipe, or what is in it when finish is called.
func (c *outputCopy) copyAll() error {
	buf := make([]byte, copySize)
	for {
		n, err := c.from.Read(buf)
		if n > 0 {
			if err := writeAll(c.to, buf[:n]); err != nil {
				return c.writeError(err)
			}
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return c.writeError(c.copyRest(buf))
		case err != nil:
			return nil
		}
	}
}

// writeError is nil where the reader of a pipe has gone: the process gets EPIPE as soon as
// it writes more, and decides.
func (c *outputCopy) writeError(err error) error {
	if err == nil || errors.Is(err, unix.EPIPE) {
		return nil
	}
	return fmt.Errorf("write %s: %w", c.to.Name(), err)
}

// finish has the copying end with what is in the pipe now.
func (c *outputCopy) finish() {
	if !c.terminal {
		_ = c.from.SetReadDeadline(longAgo()) // it may be closed
	}
}

// longAgo is a deadline that is over.
func longAgo() time.Time { return time.Unix(1, 0) }

// copyRest copies what is in the pipe, and nothing that is written meanwhile.
func (c *outputCopy) copyRest(buf []byte) error {
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

// wait is false if not everything has come out: enough, which is for terminals, or a signal
// came first.
func (c *outputCopy) wait(s *Signals, enough <-chan time.Time) bool {
	if !c.terminal {
		enough = nil
	}
	for {
		select {
		case <-c.done:
			return true
		case <-enough:
			return false
		case sig := <-s.C:
			if AsksToEnd(sig) {
				return false
			}
		}
	}
}
