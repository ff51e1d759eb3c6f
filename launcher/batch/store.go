package batch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/removetree"
)

// Store is a directory with the batches of a user.
type Store struct{ Dir string }

// isName reports whether a text can be the name of a batch, which is that of its directory.
func isName(text string) bool {
	const alphanumeric, maxName = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", 64
	return text != "" && len(text) <= maxName && strings.Trim(text[:1], alphanumeric) == "" && strings.Trim(text, alphanumeric+"_.-") == ""
}

// ErrNotFound means that there is no batch of this name.
var ErrNotFound = errors.New("there is no such batch")

// Path is that of a file of a batch.
func (s Store) Path(name string, elem ...string) string {
	return filepath.Join(append([]string{s.Dir, name}, elem...)...)
}

// Output returns the paths of a task's standard output and standard error.
func (s Store) Output(name string, number int) (out, errs string) {
	base := s.Path(name, "output", strconv.Itoa(number/1000), strconv.Itoa(number))
	return base + ".out", base + ".err"
}

// Create writes a new batch, and opens its journal.
func (s Store) Create(b *Batch) (*Journal, error) {
	if !isName(b.Name) {
		return nil, fmt.Errorf("%q can't be the name of a batch: use letters, digits and _.-", b.Name)
	}
	text, err := formatBatch(b)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, err
	}
	err = os.Mkdir(s.Path(b.Name), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("there is a batch %s already: choose another --name, resume it (berth batch --resume %s), or remove it (berth batches rm %s)", b.Name, b.Name, b.Name)
	}
	if err != nil {
		return nil, err
	}
	err = atomicfile.Write(s.Path(b.Name, "batch.json"), text, 0o600, atomicfile.Options{Sync: true})
	var j *Journal
	if err == nil {
		j, err = OpenJournal(s.Path(b.Name, "journal"), func(Record) {})
	}
	if err != nil { // the name stays free
		return nil, errors.Join(err, removetree.RemoveAll(s.Path(b.Name)))
	}
	return j, nil
}

// formatBatch returns the text of batch.json: the batch without its tasks, and each task, as JSON in a line.
func formatBatch(b *Batch) ([]byte, error) {
	var text bytes.Buffer
	lines := json.NewEncoder(&text)
	head := *b
	head.Tasks = nil
	err := lines.Encode(head)
	for i := range b.Tasks {
		err = errors.Join(err, lines.Encode(&b.Tasks[i]))
	}
	return text.Bytes(), err
}

// parseBatch is the reverse of formatBatch.
func parseBatch(text []byte) (*Batch, error) {
	lines := json.NewDecoder(bytes.NewReader(text))
	b := &Batch{}
	if err := lines.Decode(b); err != nil {
		return nil, err
	}
	for {
		var t Task
		switch err := lines.Decode(&t); {
		case errors.Is(err, io.EOF):
			return b, b.Check()
		case err != nil:
			return nil, err
		}
		b.Tasks = append(b.Tasks, t)
	}
}

// Read returns a batch and the state of its tasks, which another process may be changing. The error Is ErrNotFound if there is no such batch.
func (s Store) Read(name string) (*Batch, *Replay, error) {
	b, err := s.readBatch(name)
	if err != nil {
		return nil, nil, err
	}
	r := NewReplay(b)
	if err := ReadJournal(s.Path(name, "journal"), r.Add); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	return b, r, nil
}

func (s Store) readBatch(name string) (*Batch, error) {
	if !isName(name) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	text, err := os.ReadFile(s.Path(name, "batch.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s; berth batches list shows them", ErrNotFound, name)
	}
	if err != nil {
		return nil, err
	}
	b, err := parseBatch(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s.Path(name, "batch.json"), err)
	}
	b.Name = name
	return b, nil
}

// workersTimeout is how long Resume waits for the workers of a runner that was killed: they kill their tasks when they notice.
const workersTimeout = 30 * time.Second

// Resume opens a batch to run what is left of it. It waits until the workers of an earlier runner have ended. The error Is ErrLocked if the batch is running.
func (s Store) Resume(name string, now time.Time) (*Batch, *Replay, *Journal, error) {
	b, err := s.readBatch(name)
	if err != nil {
		return nil, nil, nil, err
	}
	r := NewReplay(b)
	j, err := OpenJournal(s.Path(name, "journal"), r.Add)
	if err != nil {
		return nil, nil, nil, err
	}
	resumed := Record{Kind: Resumed, At: now}
	if err = s.awaitWorkers(name); err == nil {
		err = j.Append(resumed)
	}
	if err != nil {
		return nil, nil, nil, errors.Join(err, j.Close())
	}
	r.Add(resumed)
	return b, r, j, nil
}

// HoldWorker marks this process as a worker of a batch until it closes the file. The mark is a lock, which tasks don't inherit.
func (s Store) HoldWorker(name string) (*os.File, error) {
	f, err := s.openWorkers(name)
	if err != nil {
		return nil, err
	}
	if err := lock.Acquire(context.Background(), int(f.Fd()), lock.Shared); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (s Store) openWorkers(name string) (*os.File, error) {
	return os.OpenFile(s.Path(name, "workers"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
}

func (s Store) awaitWorkers(name string) error {
	f, err := s.openWorkers(name)
	if err != nil {
		return err
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(context.Background(), workersTimeout)
	defer cancel()
	if err := lock.Acquire(ctx, int(f.Fd()), lock.Exclusive); err != nil {
		return fmt.Errorf("workers of batch %s still run, although its runner was killed: %w", name, err)
	}
	return nil
}

// IsRunning reports whether a process runs the batch.
func (s Store) IsRunning(name string) bool {
	f, err := os.Open(s.Path(name, "journal"))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(lock.TryAcquire(int(f.Fd()), lock.Shared), lock.ErrBusy)
}

// Runner returns the pid of the process that runs the batch.
func (s Store) Runner(name string) (pid int, err error) {
	f, err := os.Open(s.Path(name, "journal"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	holders := lock.FindHolders(int(f.Fd()))
	if len(holders[0]) == 0 {
		return 0, fmt.Errorf("batch %s isn't running", name)
	}
	return holders[0][0].PID, nil
}

// List returns the names of all batches.
func (s Store) List() (names []string, err error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if e.IsDir() && isName(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// Remove removes a batch with the output of its tasks. The error Is ErrLocked if it is running.
func (s Store) Remove(name string) error {
	if _, err := os.Lstat(s.Path(name)); err != nil || !isName(name) {
		return fmt.Errorf("%w: %s; berth batches list shows them", ErrNotFound, name)
	}
	j, err := OpenJournal(s.Path(name, "journal"), func(Record) {})
	if err != nil {
		return err
	}
	return errors.Join(removetree.RemoveAll(s.Path(name)), j.Close())
}
