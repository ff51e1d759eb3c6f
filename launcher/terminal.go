package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// errNoTerminal: somebody is to type at a terminal, and there is none.
var errNoTerminal = errors.New("standard input is no terminal: leave out -t (--tty) to pass it on as it is, or -i (--interactive)")

// unattended says that a terminal is to be made at which nobody types.
func (o Options) unattended() bool { return o.Terminal && !o.Interactive }

// blankTerminal makes a terminal that nobody sits at, of the size of another if that has
// one. Runtimes want one as their own input, if a container is to have one; nothing
// comes in until the master is closed.
func blankTerminal(size func() (*unix.Winsize, error)) (master, slave *os.File, err error) {
	const how = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, err := unix.Open("/dev/ptmx", how, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err == nil {
		fd, err = peer(fd, how)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make a terminal: %w", err), master.Close())
	}
	if s, e := size(); e == nil {
		_ = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, s) // nobody looks at it
	}
	return master, os.NewFile(uintptr(fd), "tty"), nil
}

// peer opens the other side of a terminal, wherever /dev/pts is.
func peer(master, how int) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, uintptr(how))
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

func isTerminal(f *os.File) bool {
	_, err := termios(f)
	return err == nil
}

func termios(f *os.File) (*unix.Termios, error) {
	return unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
}

// restoreTerminal puts the terminal back when a runtime was killed that had it
// in raw mode.
func (t *task) restoreTerminal() {
	if t.tty != nil {
		// The terminal may be gone by now, and then there is nothing to restore.
		_ = unix.IoctlSetTermios(int(t.o.Stdin.Fd()), unix.TCSETS, t.tty)
	}
}

// windowSize is that of the terminal where the task's output is seen.
func (o Options) windowSize() (*unix.Winsize, error) {
	at := o.Stdin
	if o.unattended() {
		at = o.Stdout
	}
	return unix.IoctlGetWinsize(int(at.Fd()), unix.TIOCGWINSZ)
}

// consoleSize lets a program see the right size from its first moment.
func (t *task) consoleSize() *specs.Box {
	if !t.o.Terminal {
		return nil
	}
	size, err := t.o.windowSize()
	if err != nil || size.Row == 0 || size.Col == 0 {
		return nil
	}
	return &specs.Box{Height: uint(size.Row), Width: uint(size.Col)}
}

// resize gives the container's terminal the size of ours. A runtime that holds the
// terminal's master side ought to, and knows only of a terminal that it was given;
// nothing that belongs to the container is touched.
func (t *task) resize() error {
	return resize(t.o, t.cmd, t.out)
}

func resize(o Options, runtime *exec.Cmd, out *output) error {
	if out.console != nil {
		return out.console.resize()
	}
	size, err := o.windowSize()
	if err != nil {
		return fmt.Errorf("read terminal's size: %w", err)
	}
	master, err := masterOf(runtime.Process.Pid)
	if err != nil || master == nil {
		return err
	}
	defer master.Close()
	return unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, size)
}

// masterOf takes a copy of a process's descriptor of a terminal's master side.
// It is nil when there is none (yet), or no process.
func masterOf(pid int) (*os.File, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, ignoreGone(err)
	}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || filepath.Base(target) != "ptmx" {
			continue
		}
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		return copyOf(pid, n)
	}
	return nil, nil
}

func copyOf(pid, fd int) (*os.File, error) {
	p, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, ignoreGone(err)
	}
	defer func() { _ = unix.Close(p) }() // nothing was written
	n, err := unix.PidfdGetfd(p, fd, 0)
	if err != nil {
		return nil, ignoreGone(err)
	}
	return os.NewFile(uintptr(n), "ptmx"), nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EBADF) {
		return nil
	}
	return err
}
