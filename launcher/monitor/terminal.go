package monitor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/attach"
	"github.com/berth-gpu/berth/launcher/logs"
)

// console is the socket by which a runtime hands on the master side of a terminal.
type console struct {
	listener, dir *os.File
	// path is short enough for a socket's address, by way of this process's descriptor.
	path string
	name string
}

func newConsole(dir string) (*console, error) {
	const socket = "console.sock"
	c := &console{name: filepath.Join(dir, socket)}
	var err error
	if c.listener, err = attach.Listen(c.name); err != nil {
		return nil, err
	}
	if c.dir, err = os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return nil, errors.Join(err, c.listener.Close())
	}
	c.path = "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(int(c.dir.Fd())) + "/" + socket
	return c, nil
}

func (c *console) close() {
	c.listener.Close()
	c.dir.Close()
	_ = os.Remove(c.name) // it goes with the directory, too
}

// pickUp takes the terminal that the runtime has sent before it ended.
func (m *monitor) pickUp(c *console) error {
	master, err := c.receive()
	if err != nil {
		return fmt.Errorf("receive the container's terminal from %s: %w", m.runtime.Name(), err)
	}
	m.tty = master
	m.server.setInput(master)
	return m.out.terminal(logs.Stdout, master)
}

func (c *console) receive() (*os.File, error) {
	client := -1
	raw, err := c.listener.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { client, _, failed = unix.Accept4(int(fd), unix.SOCK_CLOEXEC) })
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(client) }() // nothing was written
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(client, buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errors.New("no descriptor was sent"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(errors.New("no descriptor was sent"), err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "ptmx"), nil
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
