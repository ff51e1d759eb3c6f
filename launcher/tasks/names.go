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

// ErrNameTaken: another task has the name.
var ErrNameTaken = errors.New("the name is taken")

// Claim gives a name to a task, whose directory must exist. A name of a task whose directory is
// gone is taken over, so a process that is killed in Claim blocks no name for good.
func (s Store) Claim(name, id string) (err error) {
	held, err := s.lockNames()
	if err != nil {
		return fmt.Errorf("claim name %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	if t, ok, _ := s.findRank(name); ok { // whether it is there or not: its gang's names are its own
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

// adviseRemoval names the command that frees a name: berth rm -f for a task that isn't known to
// have ended. The end of another engine's task may not be recorded here.
func (s Store) adviseRemoval(owner, name string) string {
	if ended, err := s.Exit(owner); err == nil && ended != nil {
		return "berth rm " + name + " makes it free"
	}
	return "berth rm -f " + name + " ends that task and makes it free"
}

// Unclaim gives a task's name back; one that is another's by now is left alone.
func (s Store) Unclaim(name, id string) (err error) {
	held, err := s.lockNames()
	if err != nil {
		return fmt.Errorf("give back name %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	link := filepath.Join(s.namesDir(), name)
	owner, err := os.Readlink(link)
	if err != nil || owner != id {
		return nil
	}
	return os.Remove(link)
}

// Prune removes the claims of tasks that are gone.
func (s Store) Prune() (err error) {
	held, err := s.lockNames()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	entries, err := os.ReadDir(s.namesDir())
	if err != nil {
		return err
	}
	for _, e := range entries {
		link := filepath.Join(s.namesDir(), e.Name())
		owner, err := os.Readlink(link)
		if err != nil {
			continue // nothing that was made here
		}
		if _, err := os.Lstat(s.Dir(owner)); errors.Is(err, fs.ErrNotExist) {
			if err := os.Remove(link); err != nil {
				return err
			}
		}
	}
	return nil
}

// named returns the task that has the name, "" if none has.
func (s Store) named(name string) string {
	if !ValidName(name) {
		return ""
	}
	id, err := os.Readlink(filepath.Join(s.namesDir(), name))
	if err != nil || !ValidID(id) {
		return ""
	}
	return id
}

// MaxName is how many letters a task's name can have.
const MaxName = 63

// ValidName says whether a task can be called so: letters, digits, "_", "." and "-",
// at most MaxName, beginning with a letter or digit.
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

// lockNames has one process change the names at a time, until the returned file is closed.
func (s Store) lockNames() (*lock.Lock, error) {
	if err := os.MkdirAll(s.namesDir(), 0o700); err != nil {
		return nil, err
	}
	return lock.Open(context.Background(), s.namesDir(), lock.Exclusive)
}
