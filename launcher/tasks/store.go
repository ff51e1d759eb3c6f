package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/json"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/projectquota"
	"github.com/berth-gpu/berth/internal/removetree"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Store is the directory of tasks' records. The zero value is this machine's. Any number of processes
// may use a store concurrently.
type Store struct {
	Data  string // "" means /var/lib/berth
	State string // "" means /run/berth
	Proc  string // "" means /proc
	// Config is the path of the configuration, for monitors; "" means the usual one.
	Config string
	// Inspect is [ledger.Options.Inspect] for the leases of tasks.
	Inspect func(context.Context, []ledger.Lease) error
	// SendDenied sends a signal to the process of a pidfd that this process may not send it to; nil if nothing can. Root of a user
	// namespace has no rights over processes of other users in the user's other namespaces.
	SendDenied func(pidfd int, sig syscall.Signal) error
	// PlaceMonitor moves a monitor into the cgroup around that of its task, outside of which it may not start processes in the task's; nil
	// if it may.
	PlaceMonitor func(ctx context.Context, pid int, taskCgroup string) error
}

// Ledger opens the ledger that has the task's lease.
func (s Store) Ledger(r Record) *ledger.Ledger {
	return ledger.Open(ledger.Options{Dir: s.State, Events: s.Data, Proc: s.Proc, Cgroup: r.CgroupMount, Inspect: s.Inspect})
}

// TasksDir returns the directory that contains the directories of all tasks.
func (s Store) TasksDir() string { return filepath.Join(cmp.Or(s.Data, "/var/lib/berth"), "tasks") }

// Dir returns a task's directory.
func (s Store) Dir(id string) string { return filepath.Join(s.TasksDir(), id) }

// Path returns the path of a file in a task's directory.
func (s Store) Path(id, name string) string { return filepath.Join(s.TasksDir(), id, name) }

// Lock takes the lock of a task's directory, which its launcher or monitor holds as long as it lives.
// The lock ends with the returned file, or with this process. The error Is [lock.ErrBusy] if another
// process holds the lock.
func (s Store) Lock(id string) (*os.File, error) { return lock.TryOpen(s.Dir(id), lock.Exclusive) }

// Socket returns the path of the socket of a task's monitor.
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
	if err := s.markRemoval(id); err != nil && !isDiskFull(err) { // without the mark the task is only removed by hand
		return fmt.Errorf("record task %s: %w", id, err)
	}
	return s.writeFile(id, exitFile, limitError(e), maxLife)
}

// limitError shortens the error of e: its text may come from an untrusted file.
func limitError(e Exit) Exit {
	const most = 4096
	if len(e.Error) > most {
		e.Error = strings.ToValidUTF8(e.Error[:most], "") + "…"
	}
	return e
}

// writeFile replaces a file of a task. A value of more than limit bytes is an error, because readers
// refuse it.
func (s Store) writeFile(id, name string, v any, limit int) error {
	data, err := new(json.Codec).Marshal(v)
	if err != nil {
		return fmt.Errorf("record task %s: %w", id, err)
	}
	data = append(data, '\n')
	if len(data) > limit {
		return fmt.Errorf("record task %s: its command, labels and annotations are too long: %d bytes of JSON, and there can be %d", id, len(data), limit)
	}
	// The file isn't flushed: after a power failure no task runs.
	err = atomicfile.Write(s.Path(id, name), data, 0o600, atomicfile.Options{})
	if isDiskFull(err) && name != recordFile && s.writeReserved(id, name, data) == nil {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("record task %s: %w", id, err)
	}
	return nil
}

// Record reads a task's record. The error Is fs.ErrNotExist if there is none, and is a *BrokenError if
// it can't be read.
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

// Exit reads how a task ended; nil if its end isn't recorded.
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

// MarkStopped marks a task that is to end and not to be restarted. It is called before the signal, so
// that no restart happens in between. If no file can be created in the task's directory, as on a disk
// that is read-only or has no inodes left, the mark is in the state directory.
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

// Stopped reports whether MarkStopped was called.
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

// RemoveState removes a task's files in the state directory: the socket and the mark.
func (s Store) RemoveState(id string) (err error) {
	for _, path := range []string{s.Socket(id), s.stoppedInState(id)} {
		if e := os.Remove(path); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// Remove removes a task's directory, its name and its files in the state directory. The container must
// have been removed, and the caller holds the directory's lock. The record is removed first: from then
// on the task doesn't exist. The directory is removed last, so that a sweep finds it if Remove is
// killed.
func (s Store) Remove(id string) error {
	r, err := s.Record(id)
	switch {
	case err != nil:
		return s.removeTask(id, s.releaseAllNames)
	case r.Member != nil || r.Name == id: // ranks don't claim their names
		return s.removeTask(id, func(string) error { return nil })
	}
	return s.RemoveNamed(id, r.Name)
}

// RemoveNamed is Remove for a task with this name, with or without a record.
func (s Store) RemoveNamed(id, name string) error {
	return s.removeTask(id, func(id string) error { return s.ReleaseName(name, id) })
}

func (s Store) removeTask(id string, releaseNames func(id string) error) error {
	if err := checkUnmounted(s.Dir(id)); err != nil {
		return fmt.Errorf("remove task %s: %w", id, err)
	}
	if err := os.Remove(s.Path(id, recordFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove task %s: %w", id, err)
	}
	if err := errors.Join(releaseNames(id), s.RemoveState(id)); err != nil {
		return fmt.Errorf("remove task %s: %w", id, err)
	}
	if err := RemoveDir(s.Dir(id)); err != nil {
		return fmt.Errorf("remove task %s: %w", id, err)
	}
	return nil
}

// RemoveDir removes a task's directory. The spec is removed first: as long as it exists, the task counts
// as a user of its image's layers. The project quota of the directory is released.
func RemoveDir(dir string) error {
	if err := os.Remove(filepath.Join(dir, "bundle/config.json")); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	return errors.Join(projectquota.Release(filepath.Join(dir, "upper")), removetree.RemoveAll(dir))
}

// checkUnmounted returns an error if something is mounted as the task's root in this mount namespace:
// removing the directory would remove the files of an image or of a user.
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

// IDs returns the ids of all tasks' directories, including those that are being created or removed.
func (s Store) IDs() ([]string, error) {
	names, err := smallfile.Names(s.TasksDir())
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
