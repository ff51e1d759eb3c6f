package ociruntime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/attach"
)

// Console is a socket to which a runtime sends the master side of a container's terminal.
type Console struct {
	// Path is the path for the runtime. It goes through a descriptor of this process, so that it is
	// short enough for a socket address.
	Path string

	name          string
	listener, dir *os.File
	mu            sync.Mutex
	client        *os.File // the connection of the runtime, nil before
	expired       bool     // StopWaiting was called
}

// errNone means that a runtime has ended without sending a terminal.
var errNone = errors.New("no terminal was sent")

// NewConsole creates the socket in a directory that only root can enter.
func NewConsole(dir string) (*Console, error) {
	const socket = "console.sock"
	c := &Console{name: filepath.Join(dir, socket)}
	var err error
	if c.listener, err = attach.Listen(c.name); err != nil {
		return nil, err
	}
	if c.dir, err = os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return nil, errors.Join(err, c.listener.Close())
	}
	c.Path = "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(int(c.dir.Fd())) + "/" + socket
	return c, nil
}

// Close removes the socket. Terminal must have returned, or never be called.
func (c *Console) Close() {
	for _, f := range []*os.File{c.listener, c.dir, c.client} {
		if f != nil {
			_ = f.Close() // nothing was written
		}
	}
	_ = os.Remove(c.name) // on an error it is removed with the directory
}

// Terminal waits for the terminal and returns it in non-blocking mode. It is called once.
func (c *Console) Terminal() (*os.File, error) {
	client, err := c.accept()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNone, err)
	}
	c.mu.Lock()
	c.client = client
	if c.expired {
		expireReads(client)
	}
	c.mu.Unlock()
	return receiveDescriptor(client)
}

// StopWaiting makes Terminal return at once, with the terminal if it was sent already. It is called when
// the runtime has ended.
func (c *Console) StopWaiting() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expired = true
	expireReads(c.listener)
	if c.client != nil {
		expireReads(c.client)
	}
}

// expireReads makes pending and later reads fail.
func expireReads(f *os.File) { _ = f.SetReadDeadline(time.Unix(1, 0)) } // an error means that f is closed

func (c *Console) accept() (*os.File, error) {
	client, err := attach.Accept(c.listener)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return client, err
	}
	raw, err := c.listener.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var failed error
	err = raw.Control(func(from uintptr) {
		fd, _, failed = unix.Accept4(int(from), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "runtime"), nil
}

// receiveDescriptor waits for a descriptor. After the read deadline it only takes a descriptor that was
// already sent.
func receiveDescriptor(client *os.File) (*os.File, error) {
	raw, err := client.SyscallConn()
	if err != nil {
		return nil, err
	}
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	var n int
	var failed error
	read := func(fd uintptr) bool {
		_, n, _, _, failed = unix.Recvmsg(int(fd), buf, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
	}
	if err = raw.Read(read); errors.Is(err, os.ErrDeadlineExceeded) {
		err = raw.Control(func(fd uintptr) { read(fd) })
	}
	if err = errors.Join(err, failed); err != nil {
		return nil, fmt.Errorf("%w: %w", errNone, err)
	}
	return parseDescriptor(oob[:n])
}

// parseDescriptor returns the only descriptor in a control message.
func parseDescriptor(oob []byte) (*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errNone, err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(errNone, err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "ptmx"), nil
}
