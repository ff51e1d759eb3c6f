package launcher

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

// consoleSize lets a program see the right size from its first moment.
func (t *task) consoleSize() *specs.Box {
	if !t.o.Terminal {
		return nil
	}
	size, err := unix.IoctlGetWinsize(int(t.o.Stdin.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Row == 0 || size.Col == 0 {
		return nil
	}
	return &specs.Box{Height: uint(size.Row), Width: uint(size.Col)}
}

// resize gives the container's terminal the size of ours. Runtimes ought to, and
// crun 1.8 only passes the signal on. The runtime holds the terminal's master
// side; nothing that belongs to the container is touched.
func (t *task) resize() error {
	size, err := unix.IoctlGetWinsize(int(t.o.Stdin.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return fmt.Errorf("read terminal's size: %w", err)
	}
	master, err := masterOf(t.cmd.Process.Pid)
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
