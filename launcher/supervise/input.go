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
	// master is the master side of a terminal without input; nil without one. It stays open as long
	// as the process runs, so that the terminal doesn't hang up.
	master *os.File
	failed chan error // receives the error of reading a file that is copied
}

// openInput returns what becomes the process's standard input. Files are copied through a pipe (see
// fileKind), as far as it has room: the copy may have read more than the process. A terminal that the
// process doesn't take over is copied for another reason too: the runtime isn't in the foreground process
// group, and reading would stop it. The copy ends with this process or when the pipe has no reader.
func (s Streams) openInput(n Null) (input, error) {
	if s.unattended() {
		master, in, err := newIdleTerminal(s.windowSize)
		return input{file: in, master: master}, err
	}
	if s.Terminal {
		return duplicateInput(s.Stdin)
	}
	switch kind := kindOf(s.Stdin); {
	case kind == nullFile && n.Replaced:
		return duplicateInput(s.Stdin)
	case kind == nullFile:
		return n.emptyInput()
	default:
		return copyInput(s.Stdin, kind == terminalFile)
	}
}

// duplicateInput returns a duplicate of f.
func duplicateInput(f *os.File) (input, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return input{}, fmt.Errorf("duplicate standard input: %w", err)
	}
	return input{file: os.NewFile(uintptr(fd), "stdin")}, nil
}

// copyInput returns a pipe into which the content of a file is copied in the background.
func copyInput(from *os.File, terminal bool) (input, error) {
	r, w, err := newPipe("standard input")
	if err != nil {
		return input{}, err
	}
	in := input{file: r, failed: make(chan error, 1)}
	go func() {
		_, err := io.Copy(w, pollingReader{from})
		// A process needn't read all of it, and the other end of a socket may end without a goodbye.
		if err != nil && !terminal && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
			in.failed <- fmt.Errorf("standard input: %w", err)
		}
		_ = w.Close() // a pipe: nothing is flushed
	}()
	return in, nil
}

// pollingReader waits for input although another process has made the file non-blocking.
type pollingReader struct{ file *os.File }

func (r pollingReader) Read(buf []byte) (int, error) {
	for {
		n, err := r.file.Read(buf)
		if !errors.Is(err, unix.EAGAIN) {
			return n, err
		}
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(r.file.Fd()), Events: unix.POLLIN}}, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return 0, err
		}
	}
}

// closeProcessEnd closes the process's end. It is called when the runtime was started or won't be.
func (in input) closeProcessEnd() {
	if in.file != nil {
		_ = in.file.Close() // nothing was written
	}
}

// closeMaster hangs up a terminal without input.
func (in input) closeMaster() {
	if in.master != nil {
		_ = in.master.Close() // nothing was written
	}
}

// copyError returns the error of the copy, nil if there is none so far.
func (in input) copyError() error {
	select {
	case err := <-in.failed:
		return err
	default:
		return nil
	}
}
