package tasks

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// BrokenError means that a task's files can't be read. After a power failure, for instance, files that
// were written just before can be empty.
type BrokenError struct {
	ID  string
	Err error
}

func (e *BrokenError) Error() string { return "task " + e.ID + " is broken: " + e.Err.Error() }

func (e *BrokenError) Unwrap() error { return e.Err }

// errUnreadable means that the file is damaged, not just of a newer version.
var errUnreadable = errors.New("it is damaged")

// IsDamaged reports whether the file is damaged, so that no version of berth can read it. Such a
// task can only be removed.
func (e *BrokenError) IsDamaged() bool { return errors.Is(e.Err, errUnreadable) }

// newDamagedError returns a BrokenError about a task's file. Unless err Is errVersion, the file counts
// as damaged.
func newDamagedError(id, path string, err error) error {
	if errors.Is(err, errVersion) {
		return &BrokenError{id, fmt.Errorf("read %s: %w", path, err)}
	}
	return &BrokenError{id, fmt.Errorf("read %s: %w: %w", path, errUnreadable, err)}
}

// readFile reads a file of a task.
func (s Store) readFile(id, name string, limit int) ([]byte, error) {
	data, err := smallfile.Read(s.Path(id, name), limit)
	switch {
	case errors.Is(err, smallfile.ErrTooLarge):
		return nil, newDamagedError(id, s.Path(id, name), err)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, &BrokenError{id, err}
	}
	return data, err
}

// isBlank reports whether a file is empty or has NUL bytes only, as after a power failure.
func isBlank(data []byte) bool { return len(bytes.Trim(data, "\x00\n")) == 0 }

// newBrokenTask returns a task whose record is unknown, in state Broken.
func newBrokenTask(e *BrokenError) Task {
	return Task{Record: Record{ID: e.ID, Name: e.ID}, Status: Status{State: Broken, Why: e.Err.Error()}}
}
