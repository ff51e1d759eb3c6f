package launcher

import (
	"fmt"
	"io"
	"os"
	"time"
)

// drainTime is how long output is waited for when processes of the task might
// have stayed that hold their end open.
const drainTime = time.Second

// output is what a task writes to instead of a terminal that isn't its own: who
// has a descriptor of a terminal can open it anew and read what is typed there.
type output struct {
	stdout, stderr *os.File // of the task
	pipes          []*os.File
	copies         []chan struct{}
}

// newOutput puts a pipe in the place of each terminal; anything else is passed on.
// One terminal is one pipe, so that the order of what is written stays.
func (o Options) newOutput() (*output, error) {
	out := &output{stdout: o.Stdout, stderr: o.Stderr}
	if o.Terminal && o.Interactive {
		return out, nil // which the runtime has to make raw
	}
	var err error
	if isTerminal(o.Stdout) {
		if out.stdout, err = out.pipe(o.Stdout); err != nil {
			return nil, err
		}
	}
	switch {
	case !isTerminal(o.Stderr):
	case out.stdout != o.Stdout && sameFile(o.Stdout, o.Stderr):
		out.stderr = out.stdout
	default:
		if out.stderr, err = out.pipe(o.Stderr); err != nil {
			out.started()
			return nil, err
		}
	}
	return out, nil
}

func sameFile(a, b *os.File) bool {
	x, err := a.Stat()
	if err != nil {
		return false
	}
	y, err := b.Stat()
	return err == nil && os.SameFile(x, y)
}

func (out *output) pipe(to *os.File) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe for output: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(to, r) // a terminal that has gone is noticed by who writes
		_ = r.Close()
	}()
	out.pipes, out.copies = append(out.pipes, w), append(out.copies, done)
	return w, nil
}

// started is called when the runtime has the ends that are written to, or never will.
func (out *output) started() {
	for _, w := range out.pipes {
		_ = w.Close() // nothing was written
	}
}

// drain waits until everything has come out, which can last at a terminal that was
// stopped: then for a signal. ended says that no process of the task is left.
func (out *output) drain(s *signals, ended bool) {
	var enough <-chan time.Time
	if !ended {
		enough = time.After(drainTime)
	}
	for _, done := range out.copies {
		for waiting := true; waiting; {
			select {
			case <-done:
				waiting = false
			case <-enough:
				return
			case sig := <-s.task:
				if asksToEnd(sig) {
					return
				}
			}
		}
	}
}
