package supervise

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// input is the standard input of a process in a container.
type input struct {
	file *os.File // the process's end; nil for none
	// master is the other side of a terminal at which nobody types; nil without one. It
	// stays open as long as the process runs, or its terminal would hang up.
	master *os.File
	failed chan error // receives why a file that is copied couldn't be read
}

// openInput returns what becomes the process's standard input. A named file is copied
// through a pipe (see fileKind), and so is a terminal that isn't to be the process's own:
// the runtime isn't in the foreground, and would be stopped if it read it. The copying ends
// with this process, or when nobody reads any more.
func (s Streams) openInput(n Null) (input, error) {
	if s.unattended() {
		master, in, err := newTerminalNobodyUses(s.windowSize)
		return input{file: in, master: master}, err
	}
	if s.Terminal {
		return duplicateInput(s.Stdin)
	}
	switch kind := kindOf(s.Stdin); {
	case kind == namelessFile, kind == nullFile && n.Replaced:
		return duplicateInput(s.Stdin)
	case kind == nullFile:
		return n.emptyInput()
	default:
		return copyInput(s.Stdin, kind == terminalFile)
	}
}

// duplicateInput gives the process the file itself.
func duplicateInput(f *os.File) (input, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return input{}, fmt.Errorf("duplicate standard input: %w", err)
	}
	return input{file: os.NewFile(uintptr(fd), "stdin")}, nil
}

// copyInput gives the process a pipe with what is in a file.
func copyInput(from *os.File, terminal bool) (input, error) {
	r, w, err := newPipe("standard input")
	if err != nil {
		return input{}, err
	}
	in := input{file: r, failed: make(chan error, 1)}
	go func() {
		_, err := io.Copy(w, from)
		if err != nil && !terminal && !errors.Is(err, unix.EPIPE) { // a process needn't read all of it
			in.failed <- fmt.Errorf("standard input: %w", err)
		}
		_ = w.Close() // or the terminal is gone
	}()
	return in, nil
}

// closeProcessEnd is called when the runtime has its own descriptor, or never will.
func (in input) closeProcessEnd() {
	if in.file != nil {
		_ = in.file.Close() // nothing was written
	}
}

// closeMaster hangs up the terminal at which nobody types.
func (in input) closeMaster() {
	if in.master != nil {
		_ = in.master.Close() // nothing was written
	}
}

// copyError returns why something couldn't be read, so far.
func (in input) copyError() error {
	select {
	case err := <-in.failed:
		return err
	default:
		return nil
	}
}
