// Package sealed opens programs for execution such that no process that runs them can
// write to them.
//
// A container runtime has to see to this itself, for its process is in the container for
// a moment, and through /proc it can be reached there: crun makes a read-only mount of
// itself and executes itself from there, which is a quarter of the time in which it runs a
// container. It leaves that out if it finds itself on one.
package sealed

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Open opens the program at path as a descriptor that can be executed and nothing else.
// Its mount is read-only and in no namespace, so nobody can make it writable again. It
// needs Linux 5.12 and the right to mount. A script is refused: its interpreter would
// look for the descriptor, which is closed by then.
func Open(path string) (*os.File, error) {
	tree, err := cloneReadOnly(path)
	if err != nil {
		return nil, err
	}
	// Closing it takes the mount out of its namespace, whoever else still uses it.
	defer tree.Close()
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", tree.Fd()), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Mount makes the program at path appear read-only at an existing file, in the mount
// namespace of the calling thread. Nobody can write to the program through it who can't
// change mounts there. Requirements and refusals are those of Open.
func Mount(path, at string) error {
	tree, err := cloneReadOnly(path)
	if err != nil {
		return err
	}
	defer tree.Close() // the mount stays at its place
	if err := unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s at %s: %w", path, at, err)
	}
	return nil
}

// cloneReadOnly makes a read-only mount of a program that is in no namespace.
func cloneReadOnly(path string) (*os.File, error) {
	if err := checkELF(path); err != nil {
		return nil, fmt.Errorf("open program: %w", err)
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("clone mount of %s: %w", path, err)
	}
	tree := os.NewFile(uintptr(fd), path)
	only := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &only); err != nil {
		tree.Close()
		return nil, fmt.Errorf("make mount of %s read-only: %w", path, err)
	}
	return tree, nil
}

// Path is where a child of this process finds the program, whatever becomes of its own
// descriptors.
func Path(program *os.File) string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), program.Fd())
}

var errNoBinary = errors.New("not an ELF program")

func checkELF(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var magic [4]byte
	if _, err := io.ReadFull(f, magic[:]); err != nil || string(magic[:]) != "\x7fELF" {
		return fmt.Errorf("%s: %w", path, errNoBinary)
	}
	return nil
}
