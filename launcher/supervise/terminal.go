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

// ErrNoTerminal says that a terminal is to be used from standard input, which isn't one.
var ErrNoTerminal = errors.New("standard input is no terminal: leave out -t (--tty) to pass it on as it is, or -i (--interactive)")

// IsTerminal says whether a file is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := terminalState(f)
	return err == nil
}

func terminalState(f *os.File) (*unix.Termios, error) {
	return unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
}

// newTerminalNobodyUses makes a terminal of the size that another has, if it has one.
// Runtimes want a terminal as their own input where a container is to have one; nothing
// comes in until the master is closed.
func newTerminalNobodyUses(size func() (*unix.Winsize, error)) (master, slave *os.File, err error) {
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
		_ = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, s) // nobody depends on it
	}
	return master, os.NewFile(uintptr(fd), "tty"), nil
}

// openTerminalPeer opens the slave side of a terminal, wherever /dev/pts is.
func openTerminalPeer(master, how int) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, uintptr(how))
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// windowSize returns the size of the terminal where the process's output is seen.
func (s Streams) windowSize() (*unix.Winsize, error) {
	at := s.Stdin
	if s.unattended() {
		at = s.Stdout
	}
	return unix.IoctlGetWinsize(int(at.Fd()), unix.TIOCGWINSZ)
}

// ConsoleSize returns the size that the process's terminal is to have from its first moment
// on; nil without a terminal, or where no size is known.
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

// resizeTerminalOf gives the terminal whose master side a runtime holds the size of ours.
// Runtimes that do so know only of a terminal that they were given as input. No file of the
// container's is touched.
func (s Streams) resizeTerminalOf(runtime int) error {
	size, err := s.windowSize()
	if err != nil {
		return fmt.Errorf("read terminal's size: %w", err)
	}
	master, err := masterOf(runtime)
	if err != nil || master == nil {
		return err
	}
	defer master.Close()
	return unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, size)
}

// masterOf duplicates a process's descriptor of the master side of a terminal. It is nil
// without one (yet), or without the process.
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
		return duplicateFrom(pid, n)
	}
	return nil, nil
}

// duplicateFrom duplicates a descriptor of another process.
func duplicateFrom(pid, fd int) (*os.File, error) {
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

// SetTerminalSize gives a terminal a size.
func SetTerminalSize(terminal *os.File, size *unix.Winsize) error {
	raw, err := terminal.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) })
	return errors.Join(err, failed)
}
