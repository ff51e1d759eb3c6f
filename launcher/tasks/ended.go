package tasks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// removalFile marks an ended task that isn't to be kept and whose removal has failed.
const removalFile = "remove"

// Ended is a task that has ended and is kept.
type Ended struct {
	ID       string
	Finished time.Time // modification time of exit.json
}

// SplitEnded returns the tasks that have ended and are kept, the earliest end first, and the ids of all
// others, among them ended tasks whose removal has failed or was killed. It reads no file: thousands of
// ended tasks cost milliseconds.
func (s Store) SplitEnded() (ended []Ended, others []string, err error) {
	ids, err := s.IDs()
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		// A power failure can leave an empty file.
		fi, err := os.Lstat(s.Path(id, exitFile))
		if err != nil || fi.Size() == 0 {
			others = append(others, id)
			continue
		}
		if _, err := os.Lstat(s.Path(id, removalFile)); err == nil {
			others = append(others, id)
			continue
		}
		if _, err := os.Lstat(s.Path(id, recordFile)); err != nil { // its removal was killed
			others = append(others, id)
			continue
		}
		ended = append(ended, Ended{id, fi.ModTime()})
	}
	slices.SortStableFunc(ended, func(a, b Ended) int { return a.Finished.Compare(b.Finished) })
	return ended, others, nil
}

// ListUnended is List without the tasks that have ended and are kept.
func (s Store) ListUnended() ([]Task, error) {
	_, ids, err := s.SplitEnded()
	if err != nil {
		return nil, err
	}
	return s.list(ids)
}

// LastChange returns when a file in a task's directory was last created, replaced or removed, or the
// log was last written.
func (s Store) LastChange(id string) (time.Time, error) {
	dir, err := os.Lstat(s.Dir(id))
	if err != nil {
		return time.Time{}, fmt.Errorf("task %s: %w", id, err)
	}
	last := dir.ModTime()
	if log, err := os.Lstat(filepath.Join(s.Dir(id), "log")); err == nil && log.ModTime().After(last) {
		last = log.ModTime()
	}
	return last, nil
}

// markRemoval creates removalFile for a task that isn't to be kept.
func (s Store) markRemoval(id string) error {
	r, err := s.Record(id)
	if err != nil || !r.Remove {
		return nil //nolint:nilerr // without a record it is no task
	}
	f, err := os.OpenFile(s.Path(id, removalFile), os.O_WRONLY|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}
