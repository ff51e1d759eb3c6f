package tasks

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/json"
	"github.com/berth-gpu/berth/internal/projectquota"
	"github.com/berth-gpu/berth/internal/removetree"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// Store is where tasks are. Its zero value is this machine's; any number of processes
// may use one at once.
type Store struct {
	Data  string // "" means /var/lib/berth
	State string // "" means /run/berth
	Proc  string // "" means /proc
}

// All is the directory of all tasks.
func (s Store) All() string { return filepath.Join(cmp.Or(s.Data, "/var/lib/berth"), "tasks") }

// Dir is a task's directory.
func (s Store) Dir(id string) string { return filepath.Join(s.All(), id) }

// Path is that of a file of the task.
func (s Store) Path(id, name string) string { return filepath.Join(s.All(), id, name) }

// Socket is where a task's monitor listens.
func (s Store) Socket(id string) string {
	return filepath.Join(cmp.Or(s.State, "/run/berth"), "attach", id+".sock")
}

func (s Store) namesDir() string { return filepath.Join(cmp.Or(s.Data, "/var/lib/berth"), "names") }

func (s Store) proc() string { return cmp.Or(s.Proc, "/proc") }

// Files of a task's directory.
const (
	recordFile  = "task.json"
	lifeFile    = "run.json"
	exitFile    = "exit.json"
	stoppedFile = "stopped"
)

// WriteRecord replaces the record of r.ID, whose directory must exist.
func (s Store) WriteRecord(r Record) error {
	r.Version = Version
	return s.writeFile(r.ID, recordFile, r, maxRecord)
}

// WriteLife replaces a task's life.
func (s Store) WriteLife(id string, l Life) error {
	l.Version = Version
	if l.Ended != nil {
		ended := limitError(*l.Ended)
		l.Ended = &ended
	}
	return s.writeFile(id, lifeFile, l, maxLife)
}

// WriteExit records a task's end. Everything that the task held must have been released.
func (s Store) WriteExit(id string, e Exit) error {
	e.Version = Version
	if err := s.markRemoval(id); err != nil && !isDiskFull(err) { // without it only a person removes the task
		return fmt.Errorf("record task %s: %w", id, err)
	}
	return s.writeFile(id, exitFile, limitError(e), maxLife)
}

// limitError shortens the rest of an error: the text may come from an untrusted file.
func limitError(e Exit) Exit {
	const most = 4096
	if len(e.Error) > most {
		e.Error = strings.ToValidUTF8(e.Error[:most], "") + "…"
	}
	return e
}

// writeFile replaces a file of a task. A value of more than limit bytes is refused, because readers
// refuse it too.
func (s Store) writeFile(id, name string, v any, limit int) error {
	data, err := new(json.Codec).Marshal(v)
	if err != nil {
		return fmt.Errorf("record task %s: %w", id, err)
	}
	data = append(data, '\n')
	if len(data) > limit {
		return fmt.Errorf("record task %s: its command, labels and annotations are too long: %d bytes of JSON, and there can be %d", id, len(data), limit)
	}
	// Not flushed: after a power failure no task runs.
	err = atomicfile.Write(s.Path(id, name), data, 0o600, atomicfile.Options{})
	if isDiskFull(err) && name != recordFile && s.writeReserved(id, name, data) == nil {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("record task %s: %w", id, err)
	}
	return nil
}

// Record reads a task's record. The error Is fs.ErrNotExist where there is none, and a
// *BrokenError where it can't be read.
func (s Store) Record(id string) (Record, error) {
	data, err := s.readFile(id, recordFile, maxRecord)
	if err != nil {
		return Record{}, err
	}
	r, err := ParseRecord(data)
	if err == nil && r.ID != id {
		err = errors.New("it is that of task " + r.ID)
	}
	if err != nil {
		return Record{}, newDamagedError(id, s.Path(id, recordFile), err)
	}
	return r, nil
}

// Life reads a task's current life; nil if there was none.
func (s Store) Life(id string) (*Life, error) { return readOptional(s, id, lifeFile, ParseLife) }

// Exit reads how a task ended; nil if it hasn't.
func (s Store) Exit(id string) (*Exit, error) { return readOptional(s, id, exitFile, ParseExit) }

func readOptional[T any](s Store, id, name string, parse func([]byte) (T, error)) (*T, error) {
	data, err := s.readFile(id, name, maxLife)
	if errors.Is(err, fs.ErrNotExist) || err == nil && isBlank(data) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	v, err := parse(data)
	if err != nil {
		return nil, newDamagedError(id, s.Path(id, name), err)
	}
	return &v, nil
}

// MarkStopped says that a task shall end and not be started again. It comes before the
// signal, so that no restart slips in between. Where the task's directory takes no file, as
// on a disk that is read-only or has no inodes left, the mark is in the state directory.
func (s Store) MarkStopped(id string) error {
	err := atomicfile.Write(s.Path(id, stoppedFile), nil, 0o600, atomicfile.Options{})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		mark := s.stoppedInState(id)
		if err = os.MkdirAll(filepath.Dir(mark), 0o700); err == nil {
			err = os.WriteFile(mark, nil, 0o600)
		}
	}
	if err != nil {
		return fmt.Errorf("mark task %s as stopped: %w", id, err)
	}
	return nil
}

// Stopped says whether MarkStopped was called.
func (s Store) Stopped(id string) bool {
	for _, path := range []string{s.Path(id, stoppedFile), s.stoppedInState(id)} {
		if _, err := os.Lstat(path); err == nil {
			return true
		}
	}
	return false
}

func (s Store) stoppedInState(id string) string {
	return filepath.Join(cmp.Or(s.State, "/run/berth"), "attach", id+".stopped")
}

// RemoveState removes what a task has in the state directory: its socket and its mark.
func (s Store) RemoveState(id string) (err error) {
	for _, path := range []string{s.Socket(id), s.stoppedInState(id)} {
		if e := os.Remove(path); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// Remove removes a task's directory, its name and what it has in the state directory. Its container must be
// gone, and the caller holds the directory's lock. The record goes first: from then on
// there is no such task. The directory goes last: if Remove is killed before, a sweep finds it and does the rest.
func (s Store) Remove(id string) error {
	name := id
	if r, err := s.Record(id); err == nil && r.Member == nil { // ranks don't claim their names
		name = r.Name
	}
	return s.RemoveNamed(id, name)
}

// RemoveNamed is Remove for a task that has claimed the name, whether it has a record or not.
func (s Store) RemoveNamed(id, name string) error {
	if err := checkUnmounted(s.Dir(id)); err != nil {
		return fmt.Errorf("remove task %s: %w", id, err)
	}
	if err := os.Remove(s.Path(id, recordFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove task %s: %w", id, err)
	}
	var err error
	if name != id {
		err = s.Unclaim(name, id)
	}
	if err = errors.Join(err, s.RemoveState(id), RemoveDir(s.Dir(id))); err != nil {
		return fmt.Errorf("remove task %s: %w", id, err)
	}
	return nil
}

// RemoveDir removes a task's directory, the spec first: as long as there is one, the task
// uses the layers that it has noted. The bound of what it has written goes with it.
func RemoveDir(dir string) error {
	if err := os.Remove(filepath.Join(dir, "bundle/config.json")); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	return errors.Join(projectquota.Release(filepath.Join(dir, "upper")), removetree.RemoveAll(dir))
}

// checkUnmounted makes sure that nothing is mounted as the task's root, here where it would be
// emptied: it could be an image, or people's files.
func checkUnmounted(dir string) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	root, err := unix.Openat2(fd, "rootfs", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "look for mounts at", Path: filepath.Join(dir, "rootfs"), Err: err}
	}
	return unix.Close(root)
}

// IDs lists the directories of all tasks, those too that are being made or removed.
func (s Store) IDs() ([]string, error) {
	names, err := smallfile.Names(s.All())
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	ids := names[:0]
	for _, name := range names {
		if ValidID(name) {
			ids = append(ids, name)
		}
	}
	return ids, nil
}
