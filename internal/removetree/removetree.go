// Package removetree removes directories of any depth, also with immutable files. os.RemoveAll keeps a
// file descriptor open for each level, so it fails for a tree with more levels than a process may have open
// files. It fails as well for what is immutable or append-only. An image or a task can make such a tree, the
// latter with CAP_LINUX_IMMUTABLE.
package removetree

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// maxDepth is the maximum depth of the tree below each entry of its root after flatten.
const maxDepth = 32

// RemoveAll is os.RemoveAll for trees of any depth, whatever is immutable or append-only in them: a missing
// dir is no error. It is idempotent; an interrupted call can be repeated. No other process may change the
// tree during the call. A tree that os.RemoveAll can't remove must be on one file system.
func RemoveAll(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) && !errors.Is(err, unix.EPERM) {
		return err
	}
	if err := flatten(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// flatten lifts the protection of all files and directories of the tree, and moves the directories that lie
// deeper than maxDepth to the top, each under a new name.
func flatten(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // a directory
	top, err := root.Stat(".")
	if err != nil {
		return err
	}
	if err := clearProtection(root, ".", fs.FileInfoToDirEntry(top)); err != nil {
		return err
	}
	for starts := []string{"."}; len(starts) > 0; starts = starts[1:] {
		deep, err := flattenBelow(root, starts[0], maxDepth)
		if err != nil {
			return err
		}
		starts = append(starts, deep...)
	}
	return nil
}

// flattenBelow is flatten for one directory. It returns the new names of the directories that it has moved to the top.
// fs.WalkDir isn't used, because names can be any bytes.
func flattenBelow(root *os.Root, dir string, depth int) (moved []string, err error) {
	f, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	entries, err := f.ReadDir(-1)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	for _, d := range entries {
		name := dir + "/" + d.Name()
		if err := clearProtection(root, name, d); err != nil {
			return moved, err
		}
		switch {
		case !d.IsDir():
		case depth > 1:
			below, err := flattenBelow(root, name, depth-1)
			moved = append(moved, below...)
			if err != nil {
				return moved, err
			}
		default:
			top := rand.Text() // unpredictable: the tree's owner can't have taken the name
			if err := root.Rename(name, top); err != nil {
				return moved, err
			}
			moved = append(moved, top)
		}
	}
	return moved, nil
}

// Flags of linux/fs.h with which the kernel refuses to remove a file, or an entry of a directory.
const (
	immutable  = 0x10 // FS_IMMUTABLE_FL
	appendOnly = 0x20 // FS_APPEND_FL
)

// clearProtection clears the flags of a file, directory or FIFO: on XFS a task can protect the FIFOs of its output. No others are
// opened: other files of a task or an image, such as devices, could do something when they are opened.
func clearProtection(root *os.Root, name string, d fs.DirEntry) (err error) {
	if kind := d.Type(); kind != 0 && kind != fs.ModeDir && kind != fs.ModeNamedPipe {
		return nil
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil || flags&(immutable|appendOnly) == 0 {
		return nil // a file system without flags protects nothing
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags&^(immutable|appendOnly)); err != nil {
		return &fs.PathError{Op: "clear flags", Path: f.Name(), Err: err}
	}
	return nil
}
