// Command pass passes an open device from one process to another.
//
//	pass send SOCKET DEVICE     opens the device and sends it to whoever connects
//	pass receive SOCKET [HOW]   receives it and keeps it until the input ends. HOW is "own": in a thread that has
//	                            descriptors of its own; "threads": after the end of the first thread; "child": a
//	                            program sleep has it afterwards
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// The first thread of the process runs main.
func init() { runtime.LockOSThread() }

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
	how := append(args, "")[1]
	if how == "threads" { // the first thread runs main
		ended := make(chan error)
		go func() { ended <- keep(args[0], "") }()
		go func() {
			if err := <-ended; err != nil {
				fmt.Fprintln(os.Stderr, "pass:", err)
			}
			os.Exit(0)
		}()
		_, _, err := unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
		return err
	}
	return keep(args[0], how)
}

func keep(socket, how string) error {
	if how == "own" {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			return err
		}
	}
	c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	for unix.Connect(c, &unix.SockaddrUnix{Name: socket}) != nil {
		time.Sleep(10 * time.Millisecond)
	}
	rights := make([]byte, 100)
	_, n, _, _, err := unix.Recvmsg(c, make([]byte, 1), rights, 0)
	if err != nil {
		return err
	}
	if _, err := unix.Write(c, []byte("x")); err != nil {
		return err
	}
	fmt.Println("received")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil || how != "child" {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil {
		return err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	child := exec.Command("sleep", "1000")
	child.ExtraFiles = []*os.File{os.NewFile(uintptr(fds[0]), "device")}
	return child.Start()
}
