package launcher

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// drainTime is how long a terminal's output is waited for when processes of the task might
// have stayed that hold their end open.
const drainTime = time.Second

// output is what a task writes to.
type output struct {
	stdout, stderr *os.File // of the task
	pipes          []*os.File
	copies         []*flow
	console        *console // in the place of all that, nil without one
}

// stdio gives the runtime what becomes the task's.
func (t *task) stdio(cmd *exec.Cmd) (err error) {
	if t.o.Terminal && !relays(t.h.runtime) {
		c, err := t.o.newConsole(t.place.bundle())
		if err != nil {
			return err
		}
		t.out = &output{console: c}
		c.give(cmd)
		return nil
	}
	null := null{kept: true}
	if t.out, err = t.o.newOutput(null); err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = t.out.stdout, t.out.stderr
	if t.o.Interactive || t.o.Terminal {
		if t.in, err = t.o.input(null); err != nil {
			t.out.started()
			return err
		}
		cmd.Stdin = t.in.file
	}
	// With our terminal, the runtime has to be in the foreground. Without it, a
	// ^C must reach the task once, through us, and not twice.
	ours := t.o.Terminal && t.o.Interactive
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !ours}
	if ours {
		t.tty, _ = termios(t.o.Stdin) // nil if it can't be read, then not restored
	}
	return nil
}

// newOutput puts a pipe in the place of what no task may have itself, see instead. One
// file is one pipe, so that the order of what is written stays.
func (o Options) newOutput(n null) (*output, error) {
	out := &output{stdout: o.Stdout, stderr: o.Stderr}
	if o.Terminal && o.Interactive {
		return out, nil // which the runtime has to make raw
	}
	var err error
	if out.stdout, err = out.instead(o, n, o.Stdout); err != nil {
		return nil, err
	}
	if out.stdout != o.Stdout && sameFile(o.Stdout, o.Stderr) {
		out.stderr = out.stdout
		return out, nil
	}
	if out.stderr, err = out.instead(o, n, o.Stderr); err != nil {
		out.started()
		return nil, err
	}
	return out, nil
}

// instead is what the task writes to that is to come to a file.
func (out *output) instead(o Options, n null, to *os.File) (*os.File, error) {
	switch kind := kindOf(to); {
	case kind == nameless, kind == nothing && n.kept, kind == outside && o.Terminal:
		return to, nil // with a terminal it is only the runtime's
	case kind == nothing && n.own != nil:
		return n.own, nil
	default:
		return out.pipe(to, kind == tty)
	}
}

func sameFile(a, b *os.File) bool {
	x, err := a.Stat()
	if err != nil {
		return false
	}
	y, err := b.Stat()
	return err == nil && os.SameFile(x, y)
}

func (out *output) pipe(to *os.File, terminal bool) (*os.File, error) {
	r, w, err := newPipe("output")
	if err != nil {
		return nil, err
	}
	c := &flow{from: r, to: to, terminal: terminal, done: make(chan struct{})}
	go c.run()
	out.pipes, out.copies = append(out.pipes, w), append(out.copies, c)
	return w, nil
}

// started is called when the runtime has the ends that are written to, or never will.
func (out *output) started() {
	for _, w := range out.pipes {
		_ = w.Close() // nothing was written
	}
}

// drain waits until everything has come out, which can last at a terminal that was
// stopped: then for a signal. ended says that no process of the task is left; otherwise
// what is written from now on isn't waited for. The error tells what couldn't be written.
func (out *output) drain(s *signals, ended bool) error {
	if out.console != nil {
		return out.console.finish(s)
	}
	var enough <-chan time.Time
	if !ended {
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

// wait says whether all has come out; enough is for terminals.
func (c *flow) wait(s *signals, enough <-chan time.Time) bool {
	if !c.terminal {
		enough = nil
	}
	for {
		select {
		case <-c.done:
			return true
		case <-enough:
			return false
		case sig := <-s.task:
			if asksToEnd(sig) {
				return false
			}
		}
	}
}

// The kinds of what a task is given for its input or output.
type givenAs int

const (
	nameless givenAs = iota // a pipe or a socket: it is nowhere else
	nothing                 // /dev/null
	tty
	outside // whatever has a name outside, or is a device
)

// kindOf is how far a task is to be trusted with a file. Who has a descriptor can open it
// anew by way of procfs: what a terminal's is for, read what is typed there; what a file's
// is for, write where only reading was meant, and change its mode or owner. Names are
// what counts, for a pipe has none and nobody else can come across it.
func kindOf(f *os.File) givenAs {
	fd := int(f.Fd())
	var where unix.Statfs_t
	if err := unix.Fstatfs(fd, &where); err == nil && (where.Type == unix.PIPEFS_MAGIC || where.Type == unix.SOCKFS_MAGIC) {
		return nameless
	}
	var st unix.Stat_t
	switch err := unix.Fstat(fd, &st); {
	case err == nil && isNull(&st):
		return nothing
	case isTerminal(f):
		return tty
	}
	return outside
}

func isNull(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3)
}
