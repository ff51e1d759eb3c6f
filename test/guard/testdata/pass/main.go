// Command pass passes an open device from one process to another.
//
//	pass send SOCKET DEVICE     opens the device and sends it to whoever connects
//	pass receive SOCKET [own]   receives it and keeps it until the input ends; with "own" in a thread that has
//	                            descriptors of its own
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	time.AfterFunc(time.Minute, func() { os.Exit(2) }) // the other side hasn't come
	act := map[string]func([]string) error{"send": send, "receive": receive}[os.Args[1]]
	if err := act(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "pass:", err)
		os.Exit(1)
	}
}

func send(args []string) error {
	device, err := unix.Open(args[1], unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(l, &unix.SockaddrUnix{Name: args[0]}); err != nil {
		return err
	}
	if err := unix.Chmod(args[0], 0o777); err != nil {
		return err
	}
	if err := unix.Listen(l, 1); err != nil {
		return err
	}
	c, _, err := unix.Accept(l)
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(c, []byte("x"), unix.UnixRights(device), nil, 0); err != nil {
		return err
	}
	_, err = unix.Read(c, make([]byte, 1)) // until it has arrived
	return err
}

func receive(args []string) error {
	if len(args) > 1 {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			return err
		}
	}
	c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	for unix.Connect(c, &unix.SockaddrUnix{Name: args[0]}) != nil {
		time.Sleep(10 * time.Millisecond)
	}
	if _, _, _, _, err := unix.Recvmsg(c, make([]byte, 1), make([]byte, 100), 0); err != nil {
		return err
	}
	if _, err := unix.Write(c, []byte("x")); err != nil {
		return err
	}
	fmt.Println("received")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
