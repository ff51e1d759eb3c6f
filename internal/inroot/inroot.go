// Package inroot opens and replaces files inside an untrusted directory tree, such as a container's root file
// system, without ever leaving the tree.
//
// Every path is resolved by the kernel (openat2 with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS, Linux 5.6): "/" and
// ".." stop at the root, links are followed inside it as after a chroot, and magic links of procfs are errors. No
// path is joined, cleaned or checked as a string, and there is no fallback for older kernels.
//
// Guarantees, also while the tree is changed: a returned descriptor belongs to a file below the root, and names are
// resolved in the directory that was opened, even if its path changes. Only regular files that aren't in the
// kernel's file systems (procfs, sysfs) are opened. A FIFO never blocks and a device is never opened, because the
// file type is read from an O_PATH descriptor, which is then reopened.
//
// Not guaranteed: mounts inside the tree are crossed, because the container sees them too; and a process that can
// rename directories out of the tree (root of the host) can move an open directory out of it.
package inroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrNotRegular means that a path is not a regular file.
var ErrNotRegular = errors.New("not a regular file")

// ErrTooLarge means that a file is larger than the caller's limit.
var ErrTooLarge = errors.New("too large")

// OpenRoot opens a directory of the host as a root. Its path is trusted: links in it are followed.
func OpenRoot(path string) (*os.File, error) {
	fd, err := retryInterrupted(func() (int, error) {
		return unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open root", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Open opens path below root with O_PATH, which has no side effects and suffices for Stat and as a base for other
// calls. flags may add O_NOFOLLOW or O_DIRECTORY.
func Open(root *os.File, path string, flags int) (*os.File, error) {
	return openFile(root, path, flags|unix.O_PATH)
}

// OpenDir opens the directory at path for reading its names.
func OpenDir(root *os.File, path string) (*os.File, error) {
	return openFile(root, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
}

// OpenFile opens the regular file at path for reading. Anything else is an error
// that Is [ErrNotRegular], and isn't opened.
func OpenFile(root *os.File, path string) (*os.File, error) {
	fd, name, err := openRegular(root, path)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openRegular is OpenFile, but returns a descriptor and a name for messages.
func openRegular(root *os.File, path string) (fd int, name string, err error) {
	at, err := openDescriptor(root, path, unix.O_PATH)
	if err != nil {
		return -1, "", err
	}
	defer func() { _ = unix.Close(at) }() // an O_PATH descriptor
	name = describePath(root, path)
	fd, err = reopenRegular(at)
	if err != nil {
		return -1, "", &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return fd, name, nil
}

// Reopen opens the regular file that an O_PATH descriptor stands for, for reading. Anything else is an error that
// Is [ErrNotRegular], and isn't opened.
func Reopen(f *os.File) (*os.File, error) {
	fd, err := reopenRegular(int(f.Fd()))
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: f.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// reopenRegular is Reopen for descriptors.
func reopenRegular(at int) (fd int, err error) {
	kind, err := kindOf(at)
	if err == nil && kind != unix.S_IFREG {
		err = fmt.Errorf("%w but %s", ErrNotRegular, kindWord(kind))
	}
	if err == nil {
		err = checkStored(at)
	}
	if err != nil {
		return -1, err
	}
	// The descriptor refers to the inode that was checked, whatever its path is by now.
	return retryInterrupted(func() (int, error) {
		return unix.Open("/proc/self/fd/"+strconv.Itoa(at), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
}

// ReadFile reads the regular file at path. A file of more than limit bytes is an
// error that Is [ErrTooLarge].
func ReadFile(root *os.File, path string, limit int64) ([]byte, error) {
	fd, name, err := openRegular(root, path)
	if err != nil {
		return nil, err
	}
	data, err := readAll(fd, limit)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	return data, nil
}

func readAll(fd int, limit int64) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Size > limit {
		return nil, fmt.Errorf("%w: %d bytes of at most %d", ErrTooLarge, st.Size, limit)
	}
	data := make([]byte, 0, st.Size+1)
	for {
		n, err := retryInterrupted(func() (int, error) { return unix.Read(fd, data[len(data):cap(data)]) })
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return data, nil
		}
		if data = data[:len(data)+n]; int64(len(data)) > limit {
			return nil, ErrTooLarge
		}
		if len(data) == cap(data) { // the file has grown
			data = slices.Grow(data, len(data))
		}
	}
}

// Kind returns the file type of path, as in the unix.S_IFMT bits of a mode.
func Kind(root *os.File, path string) (uint32, error) {
	fd, err := openDescriptor(root, path, unix.O_PATH)
	if err != nil {
		return 0, err
	}
	kind, err := kindOf(fd)
	return kind, errors.Join(err, unix.Close(fd))
}

// checkStored returns an error for files of the kernel's own file systems. Links of the tree can lead to them if they
// are mounted in it. Reading some has side effects (/proc/kmsg), and this process may have more rights there than the
// tree's owner.
func checkStored(fd int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	switch st.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC,
		unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.BPF_FS_MAGIC, unix.NSFS_MAGIC, unix.SELINUX_MAGIC, unix.BINFMTFS_MAGIC, unix.PSTOREFS_MAGIC, unix.EFIVARFS_MAGIC:
		return fmt.Errorf("%w but a file of the kernel", ErrNotRegular)
	}
	return nil
}

func kindOf(fd int) (uint32, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return st.Mode & unix.S_IFMT, err
}

// openFile opens path below root. The name of the returned file is for messages only.
func openFile(root *os.File, path string, flags int) (*os.File, error) {
	fd, err := openDescriptor(root, path, flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), describePath(root, path)), nil
}

func describePath(root *os.File, path string) string { return path + " in " + root.Name() }

// openDescriptor opens path below root. It returns a descriptor instead of an os.File, which takes further system
// calls.
func openDescriptor(root *os.File, path string, flags int) (int, error) {
	how := &unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := retryInterrupted(func() (int, error) { return unix.Openat2(int(root.Fd()), path, how) })
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: describePath(root, path), Err: err}
	}
	return fd, nil
}

// retryInterrupted repeats a call that was interrupted by a signal, or by a concurrent rename (EAGAIN, for a path with
// ".."). A process that renames without end makes it return an error, but not block.
func retryInterrupted(call func() (int, error)) (fd int, err error) {
	for range 128 {
		if fd, err = call(); err != unix.EINTR && err != unix.EAGAIN { //nolint:errorlint // a plain errno
			break
		}
	}
	return fd, err
}

func kindWord(kind uint32) string {
	switch kind {
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFLNK:
		return "a link"
	}
	return "a device"
}
