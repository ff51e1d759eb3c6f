package tasks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// Task is one task as it is now.
type Task struct {
	Record
	Life *Life `json:"life,omitempty"` // nil before the first; for a task in the foreground LifeByPIDFile
	Exit *Exit `json:"exit,omitempty"` // nil before the end
	Status
	// Held means that the launcher or the monitor lives.
	Held bool `json:"held"`
	// previousBoot means that the task is of an earlier boot of the machine. abandoned is the result of
	// Abandoned.
	previousBoot, abandoned bool
}

// Orphan reports whether the task needs a new monitor: it was started, its end isn't recorded, and
// neither its launcher nor its monitor lives. A task in the foreground needs one only while it
// runs. A rank never does: the gang's monitor supervises it.
func (t Task) Orphan() bool {
	return t.Member == nil && t.Exit == nil && t.Life != nil && !t.Held && !t.previousBoot && (t.Detached || t.State == Running)
}

// Abandoned reports whether the task's launcher was killed while the container was being created,
// and processes of the container or of the runtime still live. The container will never be started,
// but it holds the task's lease.
func (t Task) Abandoned() bool { return t.abandoned }

// Deadline returns when the task's timeout ends, the zero time if it has none or doesn't run. It is
// computed from the machine's uptime, as in the monitor.
func (t Task) Deadline() time.Time {
	if t.Timeout <= 0 || t.State != Running || t.Life == nil || t.Life.Init.Start == 0 {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(t.Timeout) - process.Age(t.Life.Init.Start)).Round(time.Second).UTC()
}

// ErrNotFound means that there is no such task, ErrAmbiguous that a word fits several tasks.
var (
	ErrNotFound  = errors.New("there is no such task")
	ErrAmbiguous = errors.New("several tasks begin so")
)

// List returns all tasks, the latest first, Broken ones at the end.
func (s Store) List() ([]Task, error) {
	ids, err := s.IDs()
	if err != nil {
		return nil, err
	}
	return s.list(ids)
}

func (s Store) list(ids []string) ([]Task, error) {
	var all []Task
	var errs []error
	for _, id := range ids {
		t, err := s.Task(id)
		var unread *BrokenError
		switch {
		case err == nil:
			all = append(all, t)
		case errors.As(err, &unread):
			all = append(all, newBrokenTask(unread))
		case !errors.Is(err, fs.ErrNotExist): // missing: being created or removed
			errs = append(errs, err)
		}
	}
	slices.SortStableFunc(all, func(a, b Task) int { return b.Created.Compare(a.Created) })
	return all, errors.Join(errs...)
}

// Find returns the task that a user means by a word: its id, its name, the name of a rank, or the
// beginning of an id that no other task shares. The error Is ErrNotFound or ErrAmbiguous.
func (s Store) Find(word string) (Task, error) {
	if ValidID(word) {
		if t, err := s.Task(word); !errors.Is(err, fs.ErrNotExist) {
			return t, err
		}
	}
	if id := s.IDByName(word); id != "" && !s.hasDir(word) {
		if t, err := s.Task(id); !errors.Is(err, fs.ErrNotExist) {
			return t, err
		}
	}
	ids, err := s.IDs()
	if err != nil {
		return Task{}, err
	}
	id, err := matchID(ids, word)
	if errors.Is(err, ErrNotFound) {
		if t, ok, err := s.findRank(word); ok {
			return t, err
		}
		return Task{}, s.notFound(word)
	}
	if err != nil {
		return Task{}, err
	}
	t, err := s.Task(id)
	if errors.Is(err, fs.ErrNotExist) {
		return Task{}, s.notFound(word)
	}
	return t, err
}

// hasDir reports whether a word is the id of a task's directory.
func (s Store) hasDir(word string) bool {
	if !ValidID(word) {
		return false
	}
	_, err := os.Lstat(s.Dir(word))
	return err == nil
}

// matchID finds the one id that is or begins with the word.
func matchID(ids []string, word string) (string, error) {
	if slices.Contains(ids, word) {
		return word, nil
	}
	var found []string
	for _, id := range ids {
		if word != "" && strings.HasPrefix(id, word) {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("task %q: %w", word, ErrNotFound)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("task %q: %w: %s; give more of the id", word, ErrAmbiguous, strings.Join(found[:2], ", "))
}

// notFound returns ErrNotFound with a suggestion of the nearest name or id.
func (s Store) notFound(word string) error {
	var known []string
	if all, err := s.List(); err == nil {
		for _, t := range all {
			known = append(known, t.Name, t.ID)
		}
	}
	return newNotFound(word, spell.Nearest(word, known))
}

func newNotFound(word, near string) error {
	if near != "" {
		return fmt.Errorf("task %q: %w (did you mean %s?)", word, ErrNotFound, near)
	}
	return fmt.Errorf("task %q: %w", word, ErrNotFound)
}

// Task returns a task by its id. The error Is fs.ErrNotExist if there is none.
func (s Store) Task(id string) (Task, error) {
	r, err := s.Record(id)
	if err != nil {
		return Task{}, err
	}
	t := Task{Record: r}
	// The exit is read before the life: a task whose exit is missing now still has its life.
	if t.Exit, err = s.Exit(id); err != nil {
		return Task{}, err
	}
	if t.Life, err = s.Life(id); err != nil {
		return Task{}, err
	}
	if t.Exit == nil && t.Life == nil {
		t.Life = s.LifeByPIDFile(r)
	}
	e, err := s.gatherEvidence(t)
	if err != nil {
		return Task{}, err
	}
	t.Held, t.previousBoot, t.Status = e.Held, r.BootID != e.Boot, Derive(e)
	if t.Detached && t.Member == nil && t.Exit == nil && t.Life == nil && !t.Held && !t.previousBoot {
		t.abandoned = mayBePopulated(r, r.Cgroup)
	}
	if t.State == Lost { // the end may have been recorded since the exit was read
		if t.Exit, err = s.Exit(id); err != nil {
			return Task{}, err
		}
		e.Exit = t.Exit
		t.Status = Derive(e)
	}
	return t, nil
}

// LifeByPIDFile returns the life of a task in the foreground, by the pid file that the runtime writes:
// a launcher in the foreground saves the time of writing run.json. It returns nil before the runtime
// has written the file, and for detached tasks.
func (s Store) LifeByPIDFile(r Record) *Life {
	path := s.Path(r.ID, "bundle/pid")
	pid, err := smallfile.Int(path)
	if err != nil || pid <= 0 || r.Detached {
		return nil
	}
	l := &Life{Version: Version, Init: Process{PID: pid}, BootID: r.BootID, Monitor: r.Maker}
	if start, err := process.Start(s.proc(), pid); err == nil && s.isInCgroup(pid, r.Cgroup) {
		l.Init.Start = start
	}
	if fi, err := os.Lstat(path); err == nil {
		l.Started = fi.ModTime()
	}
	return l
}

// isInCgroup reports whether a process is in the cgroup or below it.
func (s Store) isInCgroup(pid int, cgroup string) bool {
	groups, err := smallfile.String(s.proc() + "/" + strconv.Itoa(pid) + "/cgroup")
	return err == nil && strings.Contains(groups+"\n", ":"+cgroup+"/")
}

// gatherEvidence reads the facts from which Derive computes the status.
func (s Store) gatherEvidence(t Task) (Evidence, error) {
	e := Evidence{Record: t.Record, Life: t.Life, Exit: t.Exit, Stopped: s.Stopped(t.ID)}
	var err error
	if e.Boot, err = s.BootID(); err != nil || t.Exit != nil || t.BootID != e.Boot {
		return e, err
	}
	e.Held = s.Lives(t.Maker)
	if t.Life != nil {
		e.Held = e.Held || s.Lives(t.Life.Monitor)
		e.Init = s.Lives(t.Life.Init)
	}
	if !e.Init {
		e.Populated = mayBePopulated(t.Record, t.Cgroup+"/container")
	}
	return e, nil
}

// mayBePopulated reports whether the cgroup has processes. An error counts as yes.
func mayBePopulated(r Record, group string) bool {
	tree, err := cgroup.Detect(r.CgroupMount)
	if err != nil {
		return true
	}
	some, err := tree.Populated(group)
	return some || err != nil
}

// Lives reports whether this process exists and isn't a zombie. Another process with the same pid
// doesn't count.
func (s Store) Lives(p Process) bool {
	return p.PID > 0 && p.Start > 0 && process.Lives(s.proc(), p.PID, p.Start)
}

// Self returns the calling process.
func (s Store) Self() (Process, error) {
	pid := os.Getpid()
	start, err := process.Start(s.proc(), pid)
	return Process{PID: pid, Start: start}, err
}

// BootID returns the id of the machine's current boot.
func (s Store) BootID() (string, error) {
	id, err := smallfile.String(s.proc() + "/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot's id: %w", err)
	}
	return id, nil
}
