package server

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/isolation/hostprocess"
)

// caller is the process at the other end of a connection, and its user, as the kernel knows them.
type caller struct {
	*hostprocess.Process
	conn *net.UnixConn
}

// identifyCaller returns the process that has connected. It must be closed.
//
// Since Linux 6.5 the socket itself gives a pidfd. Before, the pid of the socket is opened, and may
// have been reused by then. It has not if the connection is still open: the process that connected
// ends its own connection with it. Only where that process has handed its socket to another one can a
// reused pid go unnoticed, and then only that of a process of the same user: Examine compares the user.
func identifyCaller(conn *net.UnixConn) (*caller, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &caller{&hostprocess.Process{FD: -1}, conn}
	var inner error
	err = raw.Control(func(socket uintptr) {
		var cred *unix.Ucred
		if cred, inner = unix.GetsockoptUcred(int(socket), unix.SOL_SOCKET, unix.SO_PEERCRED); inner != nil {
			return
		}
		c.PID, c.UID = int(cred.Pid), int(cred.Uid)
		c.FD, inner = unix.GetsockoptInt(int(socket), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if errors.Is(inner, unix.ENOPROTOOPT) {
			c.FD, inner = openPID(c.PID, int(socket))
		}
	})
	if err := errors.Join(err, inner); err != nil {
		return nil, fmt.Errorf("identify the caller: %w", err)
	}
	unix.CloseOnExec(c.FD)
	return c, nil
}

// openPID returns a pidfd of the process that has connected a socket, on kernels without SO_PEERPIDFD.
func openPID(pid, socket int) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil && isHungUp(socket) {
		return -1, errors.Join(unix.ESRCH, unix.Close(fd))
	}
	return fd, err
}

// isHungUp reports whether the other end of a socket is closed.
func isHungUp(socket int) bool {
	poll := []unix.PollFd{{Fd: int32(socket), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(poll, 0)
	return err != nil || n > 0 && poll[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
}
