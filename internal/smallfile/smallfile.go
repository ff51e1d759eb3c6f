// Package smallfile reads small files and lists directories with few system calls: a container's start reads several files
// of procfs and sysfs within a millisecond.
//
// It is for trusted directories, such as those of procfs, sysfs and berth, and never for a path of a container.
package smallfile

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrTooLarge means that a file has more bytes than its reader allows.
var ErrTooLarge = errors.New("file is too large")

// Read returns the whole content of a file that has no more than limit bytes.
func Read(path string, limit int) ([]byte, error) {
	fd, err := openFile(path, 0)
	if err != nil {
		return nil, err
	}
	data, err := ReadFD(fd, 0, limit)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return data, nil
}

// String is [Read] of at most 4 KiB, without the white space at both ends.
func String(path string) (string, error) {
	data, err := Read(path, 4096)
	return strings.TrimSpace(string(data)), err
}

// Int is [String] as a decimal number.
func Int(path string) (int, error) {
	text, err := String(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return n, nil
}

// Names returns the sorted names in a directory. A missing directory is empty.
func Names(dir string) ([]string, error) {
	fd, err := openFile(dir, unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := readNames(fd)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	slices.Sort(names)
	return names, nil
}

// ReadFD reads an open file from its offset to its end. size is the expected number of bytes, 0 if
// unknown; it only sizes the buffer.
func ReadFD(fd int, size int64, limit int) ([]byte, error) {
	// Most files of the kernel are shorter. One more byte of capacity detects the end without growing.
	const usual = 511
	data := make([]byte, 0, min(max(size, usual), int64(limit))+1)
	for {
		if len(data) == cap(data) {
			data = slices.Grow(data, 7*cap(data))
		}
		n, err := retryInterrupted(func() (int, error) { return unix.Read(fd, data[len(data):cap(data)]) })
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return data, nil
		}
		data = data[:len(data)+n]
		if len(data) > limit {
			return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
		}
	}
}

func readNames(fd int) ([]string, error) {
	var names []string
	buf := make([]byte, 1024)
	for {
		n, err := retryInterrupted(func() (int, error) { return unix.Getdents(fd, buf) })
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return names, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

func openFile(path string, flags int) (int, error) {
	fd, err := retryInterrupted(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|flags, 0)
	})
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

func retryInterrupted(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
