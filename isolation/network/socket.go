package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Sockets without package net, which would double the programs that hold them.

const namePort = 53

// bound is a socket at port 53 of an address, for what comes by one interface.
func bound(kind int, device string, a netip.Addr) (*os.File, error) {
	const waiting = 16
	return newSocket(kind, a, func(fd int, at unix.Sockaddr) error {
		if err := unix.BindToDevice(fd, device); err != nil {
			return fmt.Errorf("bind to interface %s: %w", device, err)
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
		if err := unix.Bind(fd, at); err != nil {
			return fmt.Errorf("bind to port %d: %w", namePort, err)
		}
		if kind == unix.SOCK_STREAM {
			return unix.Listen(fd, waiting)
		}
		return nil
	})
}

// connected is a socket to port 53 of a server.
func connected(kind int, a netip.Addr) (*os.File, error) {
	return newSocket(kind, a, func(fd int, to unix.Sockaddr) error {
		err := unix.Connect(fd, to)
		if errors.Is(err, unix.EINPROGRESS) {
			return arrived(fd)
		}
		return err
	})
}

// arrived waits for the end of a connect.
func arrived(fd int) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(answerTime.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			return unix.ETIMEDOUT
		}
		number, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && number != 0 {
			err = unix.Errno(number)
		}
		return err
	}
}

// newSocket is one that Go's runtime waits for, after prepare.
func newSocket(kind int, a netip.Addr, prepare func(fd int, a unix.Sockaddr) error) (*os.File, error) {
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	to, err := sockaddr(fd, a)
	if err == nil {
		err = prepare(fd, to)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "socket"), nil
}

func sockaddr(fd int, a netip.Addr) (unix.Sockaddr, error) {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: namePort, Addr: a.As4()}, nil
	}
	s := &unix.SockaddrInet6{Port: namePort, Addr: a.As16()}
	if a.Zone() == "" {
		return s, nil
	}
	name, err := unix.NewIfreq(a.Zone())
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, name)
	}
	if err != nil {
		return nil, fmt.Errorf("look for interface %s: %w", a.Zone(), err)
	}
	s.ZoneId = name.Uint32()
	return s, nil
}
