package monitor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/logs"
	"github.com/berth-gpu/berth/launcher/ociruntime"
)

// pickUp takes the terminal that the runtime has sent before it ended.
func (m *monitor) pickUp(c *ociruntime.Console) error {
	c.Hurry()
	master, err := c.Terminal()
	if err != nil {
		return fmt.Errorf("receive the container's terminal from %s: %w", m.runtime.Name(), err)
	}
	m.tty = master
	m.server.setInput(master)
	return m.out.terminal(logs.Stdout, master)
}

// hangUp lets go of a life's terminal.
func (m *monitor) hangUp() {
	if m.tty == nil {
		return
	}
	m.server.setInput(nil)
	m.out.forget(m.tty)
	m.tty.Close()
	m.tty = nil
}

// resize gives a terminal rows and columns.
func resize(tty *os.File, data []byte) error {
	size := &unix.Winsize{Row: binary.BigEndian.Uint16(data), Col: binary.BigEndian.Uint16(data[2:])}
	raw, err := tty.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) })
	return errors.Join(err, failed)
}
