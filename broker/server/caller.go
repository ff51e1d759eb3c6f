package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// caller is the process at the other end of a connection, and its user, as the kernel knows them. The
// pidfd is that process also when its pid has been reused; what is read by the pid counts only if the
// pidfd's process lives afterwards.
type caller struct {
	ledger.Process
	uid  int
	conn *net.UnixConn
	fd   int // the pidfd
}

// identifyCaller returns the process that has connected. It must be closed.
//
// Since Linux 6.5 the socket itself gives a pidfd. Before, the pid of the socket is opened, and may
// have been reused by then. It has not if the connection is still open: the process that connected
// ends its own connection with it. Only where that process has handed its socket to another one can a
// reused pid go unnoticed, and then only that of a process of the same user: lookUp compares the user.
func identifyCaller(conn *net.UnixConn) (*caller, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &caller{conn: conn, fd: -1}
	var inner error
	err = raw.Control(func(socket uintptr) {
		var cred *unix.Ucred
		if cred, inner = unix.GetsockoptUcred(int(socket), unix.SOL_SOCKET, unix.SO_PEERCRED); inner != nil {
			return
		}
		c.PID, c.uid = int(cred.Pid), int(cred.Uid)
		c.fd, inner = unix.GetsockoptInt(int(socket), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if errors.Is(inner, unix.ENOPROTOOPT) {
			c.fd, inner = openPID(c.PID, int(socket))
		}
	})
	if err := errors.Join(err, inner); err != nil {
		return nil, fmt.Errorf("identify the caller: %w", err)
	}
	unix.CloseOnExec(c.fd)
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

func (c *caller) close() { _ = unix.Close(c.fd) } // a pidfd holds no data

// isAlive reports whether the caller has not ended.
func (c *caller) isAlive() bool { return unix.PidfdSendSignal(c.fd, 0, nil, 0) == nil }

// checkUserNamespace refuses a process in a user namespace of its own: with subordinate uids, one user
// would have the limits of many.
func (c *caller) checkUserNamespace(proc string) error {
	theirs, err := process.NamespaceOf(proc, c.PID, "user")
	if err != nil || !c.isAlive() {
		return protocol.Errorf(protocol.CodeCaller, "process %d, which asks, has ended or is hidden", c.PID)
	}
	own, err := process.NamespaceOf(proc, os.Getpid(), "user")
	if err == nil && theirs != own {
		err = protocol.Errorf(protocol.CodeCaller, "process %d is in a user namespace of its own: leases are for processes of the host", c.PID)
	}
	return err
}

// lookUp fills in start and PID namespace of the caller, and returns its cgroup. It refuses a process that the
// broker must not move: one whose users aren't all the one that has connected, and one in another PID
// or cgroup namespace, as in a container: outside of the container's cgroup it would be without its limits.
func (c *caller) lookUp(proc string, tree cgroup.Hierarchy) (group string, err error) {
	gone := func(err error) error {
		return protocol.Errorf(protocol.CodeCaller, "process %d, which asks, has ended or is hidden: %v", c.PID, err)
	}
	if c.PID == 0 {
		return "", protocol.Errorf(protocol.CodeCaller, "the calling process is in a PID namespace that the host doesn't see")
	}
	users, err := readUsers(proc, c.PID)
	if err != nil {
		return "", gone(err)
	}
	if c.Start, err = process.Start(proc, c.PID); err != nil {
		return "", gone(err)
	}
	if c.Namespace, err = process.Namespace(proc, c.PID); err != nil {
		return "", gone(err)
	}
	if group, err = tree.ProcessPath(proc, c.PID); err != nil {
		return "", gone(err)
	}
	contained := false
	for _, kind := range []string{"pid", "cgroup"} {
		theirs, err := process.NamespaceOf(proc, c.PID, kind)
		if err != nil {
			return "", gone(err)
		}
		own, err := process.NamespaceOf(proc, os.Getpid(), kind)
		if err != nil {
			return "", err
		}
		contained = contained || theirs != own
	}
	switch {
	case !c.isAlive():
		return "", gone(unix.ESRCH)
	case slices.ContainsFunc(users, func(uid int) bool { return uid != c.uid }):
		return "", protocol.Errorf(protocol.CodeCaller, "process %d runs as users %v, and has connected as user %d", c.PID, users, c.uid)
	case contained:
		return "", protocol.Errorf(protocol.CodeCaller, "process %d is in a PID or cgroup namespace of its own, as in a container: leases are for processes of the host", c.PID)
	}
	return group, nil
}

// maxStatus bounds /proc/PID/status, in bytes.
const maxStatus = 64 << 10

// readUsers returns the real, effective, saved and file system uid of a process.
func readUsers(proc string, pid int) (uids []int, err error) {
	status, err := smallfile.Read(proc+"/"+strconv.Itoa(pid)+"/status", maxStatus)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(status)) {
		list, ok := strings.CutPrefix(line, "Uid:")
		if !ok {
			continue
		}
		for _, word := range strings.Fields(list) {
			uid, err := strconv.Atoi(word)
			if err != nil {
				return nil, err
			}
			uids = append(uids, uid)
		}
		if len(uids) == 4 {
			return uids, nil
		}
	}
	return nil, errors.New("no users in its status")
}

// moveInto moves the caller into a cgroup. The kernel takes a pid for that, and the pid may be reused
// just before: then another process was moved, which moveInto puts back into the cgroup of its parent,
// where it was forked a moment ago.
func (c *caller) moveInto(proc string, tree cgroup.Hierarchy, group string) error {
	if _, err := c.lookUp(proc, tree); err != nil {
		return err
	}
	if err := tree.Join(group, c.PID); err != nil {
		return err
	}
	if c.isAlive() {
		return nil
	}
	return c.returnStrays(proc, tree, group)
}

// returnStrays moves processes of other users out of a cgroup that the caller was to enter, each into the
// cgroup of its parent. Children of the caller stay: their parent may be pid 1 by now, whose cgroup has no limits.
// Its error is never nil: the caller has ended.
func (c *caller) returnStrays(proc string, tree cgroup.Hierarchy, group string) error {
	err := protocol.Errorf(protocol.CodeCaller, "process %d, which asks, has ended", c.PID)
	strays, lerr := tree.PIDs(group)
	for _, pid := range strays {
		if users, e := readUsers(proc, pid); e == nil && users[0] != c.uid {
			err = errors.Join(err, returnStray(proc, tree, pid))
		}
	}
	return errors.Join(err, lerr)
}

func returnStray(proc string, tree cgroup.Hierarchy, pid int) error {
	parent, err := process.Parent(proc, pid)
	if err != nil || parent <= 1 {
		return err
	}
	group, err := tree.ProcessPath(proc, parent)
	if err != nil {
		return err
	}
	return tree.Join(group, pid)
}
