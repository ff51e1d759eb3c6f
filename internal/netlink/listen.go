package netlink

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Listener hears what the kernel tells a group.
type Listener struct {
	file *os.File
	buf  []byte
}

// Listen joins a group of a family, in the namespace of the calling thread. The listener
// is closed when ctx ends.
func Listen(ctx context.Context, family, group int) (*Listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, family)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen to netlink: %w", err), unix.Close(fd))
	}
	l := &Listener{os.NewFile(uintptr(fd), "netlink"), make([]byte, 1<<15)}
	context.AfterFunc(ctx, func() { _ = l.file.Close() })
	return l, nil
}

// Drain passes over what has been told already.
func (l *Listener) Drain() error {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) {
		for {
			_, _, err := unix.Recvfrom(int(fd), l.buf, unix.MSG_DONTWAIT)
			if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOBUFS) {
				return // nothing is left
			}
		}
	})
}

// ErrMissed: the kernel has told more than there was room for.
var ErrMissed = errors.New("read netlink: messages were lost")

// Next waits for what is told next. After [ErrMissed] it can be called again, after
// another error not. What it returns is good until the next call.
func (l *Listener) Next() (all []Message, err error) {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var n int
	var from unix.Sockaddr
	var receiveErr error
	err = raw.Read(func(fd uintptr) bool {
		n, from, receiveErr = unix.Recvfrom(int(fd), l.buf, 0)
		return !errors.Is(receiveErr, unix.EAGAIN) && !errors.Is(receiveErr, unix.EINTR)
	})
	switch sender, _ := from.(*unix.SockaddrNetlink); {
	case err != nil:
		return nil, err
	case errors.Is(receiveErr, unix.ENOBUFS):
		return nil, ErrMissed
	case receiveErr != nil:
		return nil, os.NewSyscallError("recvfrom", receiveErr)
	case sender == nil || sender.Pid != 0:
		return nil, nil // not the kernel's
	}
	for data := l.buf[:n]; len(data) >= unix.SizeofNlMsghdr; {
		m, _, rest, err := next(data)
		if err != nil {
			return all, ErrMissed // it was cut
		}
		all, data = append(all, m), rest
	}
	return all, nil
}
