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

// Package net isn't used: it makes a monitor larger by half.

// Listen makes a socket at path that this user alone can connect to. What is there
// already is removed: whoever calls holds the task.
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
	// The mode of the descriptor becomes that of the file, whatever the umask's.
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

// Dial connects with the monitor that listens at path. The error Is fs.ErrNotExist or
// unix.ECONNREFUSED where none does.
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

// withShortPath calls call with a path that fits into a socket's address, however long the other is.
func withShortPath(path string, call func(short string) error) error {
	dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	return call("/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + filepath.Base(path))
}
