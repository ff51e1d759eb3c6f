package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/lock"
)

// ErrNameTaken means that another task has the name.
var ErrNameTaken = errors.New("the name is taken")

// ClaimName gives a name to a task, whose directory must exist. The name of a task whose directory no
// longer exists is taken over, so a process that is killed in ClaimName blocks no name for ever.
func (s Store) ClaimName(name, id string) (err error) {
	held, err := s.lockNames()
	if err != nil {
		return fmt.Errorf("claim name %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	if t, ok, _ := s.findRank(name); ok { // reserved for the gang, even if the rank doesn't exist
		return fmt.Errorf("%s is a name of a rank of a gang (%s): %w", name, cmp.Or(t.ID, "none"), ErrNameTaken)
	}
	link := filepath.Join(s.namesDir(), name)
	owner, err := os.Readlink(link)
	if err == nil && owner != id {
		if _, e := os.Lstat(s.Dir(owner)); ValidID(owner) && e == nil {
			return fmt.Errorf("task %s is called %s already: %w; %s", owner, name, ErrNameTaken, s.adviseRemoval(owner, name))
		}
		err = os.Remove(link)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("claim name %s: %w", name, err)
	}
	if owner == id {
		return nil
	}
	if err := os.Symlink(id, link); err != nil {
		return fmt.Errorf("claim name %s: %w", name, err)
	}
	return nil
}

// adviseRemoval names the command that frees a name: berth rm -f for a task without a recorded end. The
// end of another engine's task may not be recorded here.
func (s Store) adviseRemoval(owner, name string) string {
	if ended, err := s.Exit(owner); err == nil && ended != nil {
		return "berth rm " + name + " makes it free"
	}
	return "berth rm -f " + name + " ends that task and makes it free"
}

// ReleaseName releases a task's name. A name that another task has by now is left alone.
func (s Store) ReleaseName(name, id string) (err error) {
	held, err := s.lockNames()
	if err != nil {
		return fmt.Errorf("release name %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	link := filepath.Join(s.namesDir(), name)
	owner, err := os.Readlink(link)
	if err != nil || owner != id {
		return nil
	}
	return os.Remove(link)
}

// releaseAllNames releases each name of a task, whose record is missing or damaged.
func (s Store) releaseAllNames(id string) (err error) {
	held, err := s.lockNames()
	if err != nil {
		return fmt.Errorf("release names: %w", err)
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	entries, err := os.ReadDir(s.namesDir())
	for _, e := range entries {
		link := filepath.Join(s.namesDir(), e.Name())
		if owner, e := os.Readlink(link); e == nil && owner == id {
			err = errors.Join(err, os.Remove(link))
		}
	}
	return err
}

// IDByName returns the id of the task that has claimed a name, "" if none has.
func (s Store) IDByName(name string) string {
	if !ValidName(name) {
		return ""
	}
	id, err := os.Readlink(filepath.Join(s.namesDir(), name))
	if err != nil || !ValidID(id) {
		return ""
	}
	return id
}

// MaxName is the maximum length of a task's name in bytes.
const MaxName = 63

// ValidName reports whether name is valid for a task: letters, digits, "_", "." and "-", at most
// MaxName, beginning with a letter or digit.
func ValidName(name string) bool {
	if name == "" || len(name) > MaxName {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return true
}

// lockNames takes the lock of the names.
func (s Store) lockNames() (*lock.Lock, error) {
	if err := os.MkdirAll(s.namesDir(), 0o700); err != nil {
		return nil, err
	}
	return lock.Open(context.Background(), s.namesDir(), lock.Exclusive)
}
