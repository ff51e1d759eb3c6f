package supervise

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// drainTimeout bounds the wait for a terminal that takes output slowly, if processes of the task may
// still hold the other end of the pipe, and that for any reader once the process was asked to end.
const drainTimeout = time.Second

// output is the standard output and error of a process in a container.
type output struct {
	stdout, stderr *os.File // the process's
	pipes          []*os.File
	copies         []*outputCopy
	console        *console // used instead of the other fields, if not nil
}

// openOutput returns the process's output files: pipes in place of files that the process must not
// have, see fileKind. If both streams are the same file, they share a pipe, which keeps the order of
// the output.
func (s Streams) openOutput(n Null) (*output, error) {
	out := &output{stdout: s.Stdout, stderr: s.Stderr}
	if s.usesOwnTerminal() {
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
	case kind == nullFile && n.Replaced, kind == otherFile && s.Terminal:
		return to, nil // an otherFile with a terminal is only opened by the runtime
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

// closeProcessEnds closes the process's ends. It is called when the runtime was started or won't be.
func (out *output) closeProcessEnds() {
	for _, w := range out.pipes {
		_ = w.Close() // nothing was written
	}
	out.pipes = nil
}

// drain waits until all output was written. A signal that asks to end also ends the wait, because a
// terminal can be stopped (^S) for ever. Only the output that was written before the call is waited for:
// a process may have got the pipe from the task. allEnded means that no process of the task is left, asked that the
// process was asked to end: then a file that isn't read is waited for no longer than drainTimeout.
// The error tells what couldn't be written.
func (out *output) drain(s *Signals, allEnded, asked bool) error {
	if out.console != nil {
		return out.console.finish(s)
	}
	var enough <-chan time.Time
	if !allEnded || asked {
		enough = time.After(drainTimeout)
	}
	for _, c := range out.copies {
		_ = c.from.SetReadDeadline(pastDeadline()) // an error means that the copy has ended
	}
	var lost error
	for _, c := range out.copies {
		if !c.wait(s, enough, asked) {
			break
		}
		lost = errors.Join(lost, c.err)
	}
	return lost
}

// outputCopy copies a pipe into a file that the process must not have. It doesn't read ahead, so a
// slow file blocks the process as if the process wrote to the file.
type outputCopy struct {
	from, to *os.File
	terminal bool
	done     chan struct{} // closed at the end
	err      error         // valid after done
}

// copySize is the capacity of a pipe, so that what was written at once is mostly copied at once.
const copySize = 64 << 10

func (c *outputCopy) run() {
	defer close(c.done)
	err := copyOutput(c.to, c.from, countUnread)
	if !c.terminal { // a terminal may have hung up
		c.err = writeError(c.to, err)
	}
	_ = c.from.Close() // a process that keeps writing gets EPIPE
}

// countUnread returns how many bytes are in a pipe.
func countUnread(pipe int) (int, error) { return unix.IoctlGetInt(pipe, unix.TIOCINQ) }

// copyOutput copies from a pipe or a terminal until all descriptors of its other side are closed. At
// the read deadline of from it copies the rest (copyRest) and returns.
func copyOutput(to, from *os.File, limit func(from int) (int, error)) error {
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
			return copyRest(to, from, limit)
		case err != nil:
			return nil // the end of a pipe, or EIO of a terminal
		}
	}
}

// copyRest copies what can be read without blocking, at most as many bytes as limit returns.
func copyRest(to, from *os.File, limit func(from int) (int, error)) error {
	raw, err := from.SyscallConn()
	if err != nil {
		return err
	}
	buf := make([]byte, copySize)
	e := raw.Control(func(fd uintptr) {
		var left int
		for left, err = limit(int(fd)); left > 0 && err == nil; {
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

// writeError describes an error of writing to a file. It returns nil for a terminal, and for EPIPE:
// the process gets EPIPE itself with its next write and decides what to do.
func writeError(to *os.File, err error) error {
	if err == nil || errors.Is(err, unix.EPIPE) || IsTerminal(to) {
		return nil
	}
	return fmt.Errorf("write %s: %w", to.Name(), err)
}

// pastDeadline returns a deadline in the past.
func pastDeadline() time.Time { return time.Unix(1, 0) }

// wait waits until everything was copied. It returns false if a signal that asks to end came first,
// or if enough fired first, which counts for a terminal, and for other files if the process was asked to end.
func (c *outputCopy) wait(s *Signals, enough <-chan time.Time, asked bool) bool {
	if !c.terminal && !asked {
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
