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
	// Terminal gives the process a terminal of its own. With Interactive it is used from
	// Stdin, which has to be a terminal; otherwise nobody types there.
	// Interactive without Terminal connects Stdin as it is.
	Terminal, Interactive bool
}

// unattended says that the process gets a terminal at which nobody types.
func (s Streams) unattended() bool { return s.Terminal && !s.Interactive }

// ownTerminal says that this process's terminal is used for that of the container.
func (s Streams) ownTerminal() bool { return s.Terminal && s.Interactive }

// fileKind says how far a process in a container may be trusted with a file of ours. A
// process that has a descriptor can open the file anew through procfs, with other rights: of
// a terminal it could read what is typed there, and of a regular file it could change what
// it was to read, or the file's mode and owner.
type fileKind int

const (
	namelessFile fileKind = iota // a pipe or a socket: nobody else can come across it, it may be shared
	nullFile                     // /dev/null, whose mode is everybody's
	terminalFile
	namedFile // has a name outside the container, or is a device: copied through a pipe
)

func kindOf(f *os.File) fileKind {
	fd := int(f.Fd())
	var where unix.Statfs_t
	if err := unix.Fstatfs(fd, &where); err == nil && (where.Type == unix.PIPEFS_MAGIC || where.Type == unix.SOCKFS_MAGIC) {
		return namelessFile
	}
	var st unix.Stat_t
	switch err := unix.Fstat(fd, &st); {
	case err == nil && isNullDevice(&st):
		return nullFile
	case IsTerminal(f):
		return terminalFile
	}
	return namedFile
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

// Null says what a process gets in place of the host's /dev/null, which it must not have:
// its mode is shared with the whole host.
type Null struct {
	// Replaced: the runtime puts the container's null in its place, as runtimes do in a
	// container that they make.
	Replaced bool
	own      *os.File // the container's; nil if it has none
}

// ErrNoNull says that a command whose output nobody reads has nothing to write to.
var ErrNoNull = fmt.Errorf("the container's /dev/null: %w", fs.ErrNotExist)

// ContainerNull opens the /dev/null of a container that runs; root is its root. The result
// is empty if something else is there.
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
	// Opened by its descriptor, it is the file that was checked.
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", at.Fd()), os.O_RDWR, 0)
	if err != nil {
		return Null{}
	}
	return Null{own: f}
}

// Close closes the container's null.
func (n Null) Close() {
	if n.own != nil {
		_ = n.own.Close() // nothing is kept there
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

// writeAll writes to a file of the caller's. Unlike os.File it returns EPIPE where the
// reader of standard output has gone, and doesn't end this process.
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
