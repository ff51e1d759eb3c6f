package supervise

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// drainTime is how long a terminal's output is waited for when processes of the task might
// have stayed that hold their end open.
const drainTime = time.Second

// output is the standard output and error of a process in a container.
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
	if out.stdout, err = out.replaceFile(s, n, s.Stdout); err != nil {
		return nil, err
	}
	if out.stdout != s.Stdout && sameFile(s.Stdout, s.Stderr) {
		out.stderr = out.stdout
		return out, nil
	}
	if out.stderr, err = out.replaceFile(s, n, s.Stderr); err != nil {
		out.closeProcessEnds()
		return nil, err
	}
	return out, nil
}

// replaceFile returns the file that the process gets in place of to.
func (out *output) replaceFile(s Streams, n Null, to *os.File) (*os.File, error) {
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

// outputCopy copies a pipe into a file that the process must not have. It reads no further than
// it has written, so that a slow file blocks the process as if the process wrote to it.
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
	err := copyOutput(c.to, c.from, countUnread)
	if !c.terminal { // it may have gone
		c.err = writeError(c.to, err)
	}
	_ = c.from.Close() // a process that goes on writing gets EPIPE
}

// countUnread returns how many bytes are in a pipe.
func countUnread(pipe int) (int, error) { return unix.IoctlGetInt(pipe, unix.TIOCINQ) }

// copyOutput copies from a pipe or a terminal until all descriptors of its other side are closed, or until the
// read deadline: then it copies what is left, see copyRest.
func copyOutput(to, from *os.File, room func(from int) (int, error)) error {
	buf := make([]byte, copySize)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if err := writeAll(to, buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return copyRest(to, from, room)
		case err != nil:
			return nil // the end of a pipe, or EIO of a terminal
		}
	}
}

// copyRest copies what can be read at once, at most as many bytes as room returns.
func copyRest(to, from *os.File, room func(from int) (int, error)) error {
	raw, err := from.SyscallConn()
	if err != nil {
		return err
	}
	buf := make([]byte, copySize)
	e := raw.Control(func(fd uintptr) {
		var left int
		for left, err = room(int(fd)); left > 0 && err == nil; {
			n, e := unix.Read(int(fd), buf[:min(left, len(buf))])
			if errors.Is(e, unix.EINTR) {
				continue
			}
			if n <= 0 || e != nil {
				return // there is nothing more
			}
			left -= n
			err = writeAll(to, buf[:n])
		}
	})
	return errors.Join(err, e)
}

// writeError is nil where the reader of a pipe has gone: the process gets EPIPE as soon as it writes
// more, and decides. It is nil for a terminal, too.
func writeError(to *os.File, err error) error {
	if err == nil || errors.Is(err, unix.EPIPE) || IsTerminal(to) {
		return nil
	}
	return fmt.Errorf("write %s: %w", to.Name(), err)
}

// finish makes the copy end with the bytes that are in the pipe now.
func (c *outputCopy) finish() {
	if !c.terminal {
		_ = c.from.SetReadDeadline(longAgo()) // it may be closed
	}
}

// longAgo is a deadline that is over.
func longAgo() time.Time { return time.Unix(1, 0) }

// wait waits until everything was copied. It returns false if enough fired (used for terminals)
// or a signal came first.
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
