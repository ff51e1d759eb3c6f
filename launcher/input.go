package launcher

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
)

// input is what a task reads.
type input struct {
	file *os.File // of the task
	// nobody is the other side of a terminal at which nobody types, nil without one.
	nobody *os.File
	failed chan error // has what couldn't be read, of a file that is read here
}

// input is the file that becomes the task's standard input. A file is read here, as the
// task isn't to have it itself, see kindOf, and so is a terminal that isn't to be the task's
// own: the runtime, which isn't in the foreground, would be stopped if it read it. The
// reading ends with this process, or with the task.
func (o Options) input(n null) (input, error) {
	if o.unattended() {
		nobody, in, err := blankTerminal(o.windowSize)
		return input{file: in, nobody: nobody}, err
	}
	if o.Terminal {
		return same(o.Stdin)
	}
	switch kind := kindOf(o.Stdin); {
	case kind == nameless, kind == nothing && n.kept:
		return same(o.Stdin)
	case kind == nothing:
		return n.input()
	default:
		return fed(o.Stdin, kind == tty)
	}
}

// same gives the task the file itself.
func same(f *os.File) (input, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return input{}, fmt.Errorf("duplicate standard input: %w", err)
	}
	return input{file: os.NewFile(uintptr(fd), "stdin")}, nil
}

// fed gives the task a pipe, and what is in a file comes out of it.
func fed(from *os.File, terminal bool) (input, error) {
	r, w, err := newPipe("standard input")
	if err != nil {
		return input{}, err
	}
	in := input{file: r, failed: make(chan error, 1)}
	go func() {
		_, err := io.Copy(w, from)
		if err != nil && !terminal && !errors.Is(err, unix.EPIPE) { // a task may leave some of it
			in.failed <- fmt.Errorf("standard input: %w", err)
		}
		_ = w.Close() // or the terminal is gone
	}()
	return in, nil
}

// lost tells what couldn't be read until now.
func (in input) lost() error {
	select {
	case err := <-in.failed:
		return err
	default:
		return nil
	}
}

// null is what becomes of the host's /dev/null, whose mode is everybody's.
type null struct {
	kept bool     // the runtime puts the container's in its place, as it does in a new container
	own  *os.File // the container's; nil if it has none
}

// containerNull opens the null of a container, whatever is there.
func containerNull(root *os.File) *os.File {
	at, err := inroot.Open(root, "dev/null", unix.O_NOFOLLOW)
	if err != nil {
		return nil
	}
	defer at.Close() // nothing is done with it
	var st unix.Stat_t
	if unix.Fstat(int(at.Fd()), &st) != nil || !isNull(&st) {
		return nil
	}
	// By its descriptor, it is the one that was looked at.
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", at.Fd()), os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	return f
}

// errNoNull: a command that nobody hears has to write to something.
var errNoNull = fmt.Errorf("the container's /dev/null: %w", fs.ErrNotExist)

// input is one that is empty.
func (n null) input() (input, error) {
	if n.own != nil {
		return same(n.own)
	}
	r, w, err := newPipe("standard input")
	if err != nil {
		return input{}, err
	}
	return input{file: r}, w.Close()
}

func (n null) close() {
	if n.own != nil {
		_ = n.own.Close() // nothing is kept there
	}
}
