// Package sealed opens programs for execution such that no process that runs them can write to them.
//
// The process of a container runtime is in the container for a moment, where other processes can open its program through
// /proc (CVE-2019-5736). crun therefore executes itself again from a read-only mount, which takes a quarter of the time in
// which it runs a container. It doesn't if it is already on a read-only mount.
package sealed

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Open opens the program at path as a descriptor that can only be executed. Its mount is read-only and in no namespace, so
// no process can make it writable. It needs Linux 5.12 and the right to mount. A script is an error: its interpreter would
// open the descriptor, which is closed by then.
func Open(path string) (*os.File, error) {
	tree, err := cloneReadOnly(path)
	if err != nil {
		return nil, err
	}
	// Closing the descriptor of open_tree detaches the mount; the other descriptor keeps it alive.
	defer tree.Close()
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", tree.Fd()), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Mount bind-mounts the program at path read-only on an existing file, in the mount namespace of the calling thread. Only
// processes that may change mounts there can make it writable. Requirements and errors are those of Open.
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

// Path returns a path of the program that stays valid in children of this process, which don't inherit the descriptor.
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
