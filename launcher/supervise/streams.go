package supervise

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
)

// Streams are what a process in a container reads and writes when it is supervised in the
// foreground.
type Streams struct {
	Stdin, Stdout, Stderr *os.File
	// Terminal gives the process a terminal of its own. With Interactive its input comes from Stdin,
	// which must be a terminal; otherwise it has no input. Interactive without Terminal connects
	// Stdin as it is.
	Terminal, Interactive bool
}

// unattended reports whether the process gets a terminal without input.
func (s Streams) unattended() bool { return s.Terminal && !s.Interactive }

// usesOwnTerminal reports whether the container's terminal is relayed to this process's.
func (s Streams) usesOwnTerminal() bool { return s.Terminal && s.Interactive }

// fileKind says what a process in a container gets in place of a file of the host. A process that has a
// descriptor can open the file again through procfs with other rights. It could read what is typed
// at a terminal or what others write to a pipe, write to a regular file that it was to read, or change the
// file's mode and owner. It could also shut a socket down, or pass a pipe on, whose reader would then
// wait for the end.
type fileKind int

const (
	nullFile     fileKind = iota // /dev/null, whose mode the whole host shares: replaced
	terminalFile                 // copied through a pipe
	otherFile                    // copied through a pipe
)

func kindOf(f *os.File) fileKind {
	var st unix.Stat_t
	switch err := unix.Fstat(int(f.Fd()), &st); {
	case err == nil && isNullDevice(&st):
		return nullFile
	case IsTerminal(f):
		return terminalFile
	}
	return otherFile
}

func isNullDevice(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3)
}

func sameFile(a, b *os.File) bool {
	x, err := a.Stat()
	if err != nil {
		return false
	}
	y, err := b.Stat()
	return err == nil && os.SameFile(x, y)
}

// Null says what a process gets instead of the host's /dev/null. A process that had that file could
// change its mode for the whole host.
type Null struct {
	// Replaced means that the runtime replaces the host's /dev/null by the container's, as runtimes
	// do for a container that they create.
	Replaced bool
	own      *os.File // the container's /dev/null; nil if there is none
}

// ErrNoNull means that a detached command has no /dev/null to write to.
var ErrNoNull = fmt.Errorf("the container's /dev/null: %w", fs.ErrNotExist)

// ContainerNull opens the /dev/null of a running container. root is the container's root. The result
// is zero if there is no such device.
func ContainerNull(root *os.File) Null {
	at, err := inroot.Open(root, "dev/null", unix.O_NOFOLLOW)
	if err != nil {
		return Null{}
	}
	defer at.Close() // an O_PATH descriptor
	var st unix.Stat_t
	if unix.Fstat(int(at.Fd()), &st) != nil || !isNullDevice(&st) {
		return Null{}
	}
	// Opening through the descriptor opens the file that was checked.
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", at.Fd()), os.O_RDWR, 0)
	if err != nil {
		return Null{}
	}
	return Null{own: f}
}

// Close closes the container's null.
func (n Null) Close() {
	if n.own != nil {
		_ = n.own.Close() // a null device
	}
}

// emptyInput returns an input without content.
func (n Null) emptyInput() (input, error) {
	if n.own != nil {
		return duplicateInput(n.own)
	}
	r, w, err := newPipe("standard input")
	if err != nil {
		return input{}, err
	}
	return input{file: r}, w.Close()
}

func newPipe(what string) (r, w *os.File, err error) {
	if r, w, err = os.Pipe(); err != nil {
		return nil, nil, fmt.Errorf("make a pipe for %s: %w", what, err)
	}
	return r, w, nil
}

// writeAll writes data to a file. Unlike os.File.Write, it returns EPIPE for standard output instead
// of ending this process.
func writeAll(to *os.File, data []byte) error {
	fd := int(to.Fd())
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		switch {
		case errors.Is(err, unix.EAGAIN):
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
		case err == nil && n == 0:
			return io.ErrShortWrite
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		data = data[max(n, 0):]
	}
	return nil
}
