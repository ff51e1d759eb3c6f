package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Package net isn't used, because it would make monitors larger by half.

// Listen creates a socket at path to which only this user can connect. An existing file is removed; the
// caller must hold the task's lock.
func Listen(path string) (*os.File, error) {
	f, err := openListener(path)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	return f, nil
}

func openListener(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	// Bind gives the file the mode of the descriptor, less the umask.
	err = unix.Fchmod(fd, 0o600)
	if err == nil {
		err = withShortPath(path, func(short string) error { return unix.Bind(fd, &unix.SockaddrUnix{Name: short}) })
	}
	if err == nil {
		err = unix.Listen(fd, 64)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Accept waits for the next client.
func Accept(listener *os.File) (*os.File, error) {
	raw, err := listener.SyscallConn()
	if err != nil {
		return nil, err
	}
	client := -1
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		client, _, failed = unix.Accept4(int(fd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR) && !errors.Is(failed, unix.ECONNABORTED)
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(client), "client"), nil
}

// Dial connects to the monitor that listens at path. The error Is fs.ErrNotExist or unix.ECONNREFUSED
// if none does.
func Dial(path string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("connect with %s: %w", path, err)
	}
	err = withShortPath(path, func(short string) error { return unix.Connect(fd, &unix.SockaddrUnix{Name: short}) })
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	f := os.NewFile(uintptr(fd), path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect with %s: %w", path, err), f.Close())
	}
	return f, nil
}

// withShortPath calls call with a path of the same file, through a descriptor, that fits into a socket
// address (sun_path has 108 bytes).
func withShortPath(path string, call func(short string) error) error {
	dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	return call("/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + filepath.Base(path))
}
