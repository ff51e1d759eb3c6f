package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ErrNoTerminal means that a terminal was asked for and standard input is none.
var ErrNoTerminal = errors.New("standard input is no terminal: leave out -t (--tty) to pass it on as it is, or -i (--interactive)")

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := terminalState(f)
	return err == nil
}

func terminalState(f *os.File) (*unix.Termios, error) {
	return unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
}

// newIdleTerminal creates a terminal without input, of the size that size returns. Runtimes require a
// terminal as their own standard input to give a container one. The terminal has no input until
// master is closed.
func newIdleTerminal(size func() (*unix.Winsize, error)) (master, slave *os.File, err error) {
	const how = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, err := unix.Open("/dev/ptmx", how, 0)
	if err != nil {
		if errors.Is(err, unix.ENOSPC) {
			err = errors.New("the machine's terminals are all in use (kernel.pty.max)") // no disk is full
		}
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err == nil {
		fd, err = openTerminalPeer(fd, how)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make a terminal: %w", err), master.Close())
	}
	if s, e := size(); e == nil {
		_ = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, s) // the size is optional
	}
	return master, os.NewFile(uintptr(fd), "tty"), nil
}

// openTerminalPeer opens the slave side of a terminal without its path in /dev/pts.
func openTerminalPeer(master, how int) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, uintptr(how))
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// windowSize returns the size of the terminal that shows the process's output.
func (s Streams) windowSize() (*unix.Winsize, error) {
	at := s.Stdin
	if s.unattended() {
		at = s.Stdout
	}
	return unix.IoctlGetWinsize(int(at.Fd()), unix.TIOCGWINSZ)
}

// ConsoleSize returns the initial size of the process's terminal; nil without a terminal, or if the
// size is unknown.
func (s Streams) ConsoleSize() *specs.Box {
	if !s.Terminal {
		return nil
	}
	size, err := s.windowSize()
	if err != nil || size.Row == 0 || size.Col == 0 {
		return nil
	}
	return &specs.Box{Height: uint(size.Row), Width: uint(size.Col)}
}

// resizeTerminalOf sets the size of the terminal whose master side a runtime holds to that of this
// process's terminal. Runtimes do so themselves only for a terminal that they have as input. The
// master is duplicated from the runtime, so no file of the container is opened.
func (s Streams) resizeTerminalOf(runtime int) error {
	size, err := s.windowSize()
	if err != nil {
		return fmt.Errorf("read terminal's size: %w", err)
	}
	master, err := findTerminalMaster(runtime)
	if err != nil || master == nil {
		return err
	}
	defer master.Close()
	return unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, size)
}

// findTerminalMaster duplicates a process's descriptor of the master side of a terminal. It returns
// nil if the process has none or has ended.
func findTerminalMaster(pid int) (*os.File, error) {
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
		return duplicateDescriptor(pid, n)
	}
	return nil, nil
}

// duplicateDescriptor duplicates a descriptor of another process.
func duplicateDescriptor(pid, fd int) (*os.File, error) {
	p, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, ignoreGone(err)
	}
	defer func() { _ = unix.Close(p) }() // only a handle
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

// SetTerminalSize sets the size of a terminal.
func SetTerminalSize(terminal *os.File, size *unix.Winsize) error {
	raw, err := terminal.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) })
	return errors.Join(err, failed)
}
