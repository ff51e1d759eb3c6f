package tasks

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// BrokenError says that what is known of a task can't be read. After a power failure, for
// instance, files can be empty that were written just before.
type BrokenError struct {
	ID  string
	Err error
}

func (e *BrokenError) Error() string { return "task " + e.ID + " is broken: " + e.Err.Error() }

func (e *BrokenError) Unwrap() error { return e.Err }

// errUnreadable: nobody will ever understand the file.
var errUnreadable = errors.New("it is damaged")

// Hopeless says that no other berth could read it either, and looking again won't help:
// there is no other use of such a task than to remove it.
func (e *BrokenError) Hopeless() bool { return errors.Is(e.Err, errUnreadable) }

// damaged says what is wrong with a task's file.
func damaged(id, path string, err error) error {
	if errors.Is(err, errVersion) {
		return &BrokenError{id, fmt.Errorf("read %s: %w", path, err)}
	}
	return &BrokenError{id, fmt.Errorf("read %s: %w: %w", path, errUnreadable, err)}
}

// load reads a file of a task.
func (s Store) load(id, name string, limit int) ([]byte, error) {
	data, err := smallfile.Read(s.Path(id, name), limit)
	switch {
	case errors.Is(err, smallfile.ErrTooLarge):
		return nil, damaged(id, s.Path(id, name), err)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, &BrokenError{id, err}
	}
	return data, err
}

// blank: nothing was ever written to it, or a power failure has taken it away.
func blank(data []byte) bool { return len(bytes.Trim(data, "\x00\n")) == 0 }

// broken is a task of which no more is known than that it is there.
func broken(e *BrokenError) Task {
	return Task{Record: Record{ID: e.ID, Name: e.ID}, Status: Status{State: Broken, Why: e.Err.Error()}}
}
