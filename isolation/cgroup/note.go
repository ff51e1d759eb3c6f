package cgroup

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// noteAttribute is an extended attribute that only CAP_SYS_ADMIN in the first user namespace can set and read.
const noteAttribute = "trusted.berth"

// maxNote bounds a note, in bytes. It is the kernel's limit on an extended attribute.
const maxNote = 64 << 10

// SetNote attaches a text to the cgroup at path. The text ends with the cgroup.
func (h Hierarchy) SetNote(path, text string) error {
	dir, err := h.Dir(path)
	if err != nil {
		return err
	}
	if err := unix.Setxattr(dir, noteAttribute, []byte(text), 0); err != nil {
		return &os.PathError{Op: "note at", Path: dir, Err: err}
	}
	return nil
}

// Note returns the text of SetNote, "" if there is none, or no such cgroup.
func (h Hierarchy) Note(path string) (string, error) {
	dir, err := h.Dir(path)
	if err != nil {
		return "", err
	}
	text := make([]byte, maxNote)
	n, err := unix.Getxattr(dir, noteAttribute, text)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP), IsGone(err):
		return "", nil
	case err != nil:
		return "", &os.PathError{Op: "read note at", Path: dir, Err: err}
	}
	return string(text[:n]), nil
}
