package lock

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
)

// Holder is a process that holds a lock.
type Holder struct {
	PID int
	// Start is when the process started, in clock ticks since the boot: see process.Start.
	Start uint64
	// Command is its command line, printable and shortened.
	Command string
	// State is Stopped (by a signal or a debugger), Frozen (by its cgroup), or Running.
	State State
}

// State of a holder.
type State string

// States of a holder.
const (
	Running State = "running"
	Stopped State = "stopped"
	Frozen  State = "frozen"
)

// String returns a text such as "process 7 (berth alloc 1 true), which was started at 2026-05-04 12:00:00 and is stopped".
func (h Holder) String() string {
	since := time.Now().Add(-process.Age(h.Start))
	return fmt.Sprintf("process %d (%s), which was started at %s and is %s", h.PID, h.Command, since.Format("2006-01-02 15:04:05"), h.State)
}

// HeldError is the error of a wait for a lock that was held for too long. It Is ErrBusy, and Is the context's error if
// that ended the wait.
type HeldError struct {
	Path string
	// Holders are the holders in this pid namespace.
	Holders []Holder
	Waited  time.Duration
	Err     error // the context's, nil if the lock's own limit was reached
}

func (e *HeldError) Error() string {
	who := "a process that can't be seen from here"
	if len(e.Holders) > 0 {
		who = e.Holders[0].String()
	}
	return fmt.Sprintf("lock %s: held by %s, waited %v", e.Path, who, e.Waited.Round(time.Millisecond))
}

func (e *HeldError) Unwrap() []error { return []error{ErrBusy, e.Err} }

func describeHolder(pid int) (h Holder, err error) {
	h.PID = pid
	if h.Start, err = process.Start("/proc", h.PID); err != nil {
		return h, err
	}
	h.Command, h.State = readCommand(pid), Running
	switch {
	case process.FrozenCgroup("/proc", "", h.PID) != "":
		h.State = Frozen
	case process.Stopped("/proc", h.PID):
		h.State = Stopped
	}
	return h, nil
}

// maxCommand is how many characters of a command line are shown.
const maxCommand = 80

func readCommand(pid int) string {
	line, err := process.ReadCommandLine("/proc", pid)
	if err != nil {
		return "unknown"
	}
	text := []rune(strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, string(line))))
	if len(text) > maxCommand {
		text = append(text[:maxCommand-1], '…')
	}
	return string(text)
}

// freezer is the mount point of the freezer controller of cgroup version 1.
const freezer = "/sys/fs/cgroup/freezer"

// Break kills the processes that hold the lock of a file or directory if they are stopped or frozen, or hold it for
// stuckAfter. It returns the killed processes: none if the lock is free or changes its holder. The lock file stays. A
// missing file is no error.
//
// isOwn reports whether a process with this executable may be killed. A holder that may not be killed is a *HeldError.
func Break(path string, stuckAfter time.Duration, isOwn func(executable string) bool) ([]Holder, error) {
	f, err := openFile(path, os.O_RDONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var ended []Holder
	found := map[processID]time.Time{} // when each holder was seen first
	seen := false
	for began := time.Now(); ; time.Sleep(maxPause) {
		if err := TryAcquire(int(f.Fd()), Exclusive); !errors.Is(err, ErrBusy) {
			return ended, err
		}
		holders, now := FindHolders(int(f.Fd()))[0], time.Now()
		found = updateFirstSeen(found, holders, now)
		seen = seen || len(holders) > 0
		stuck := false
		for _, h := range holders {
			waited := now.Sub(found[h.id()])
			if h.State == Running && waited < stuckAfter {
				continue
			}
			stuck = true
			held := &HeldError{Path: path, Holders: []Holder{h}, Waited: waited}
			if err := endHolder(h, int(f.Fd()), isOwn); err != nil {
				return ended, fmt.Errorf("%w: %w", held, err)
			}
			if !containsHolder(ended, h) {
				ended = append(ended, h)
			}
			if waited >= stuckAfter+killTimeout {
				return ended, held
			}
		}
		switch waited := now.Sub(began); {
		case waited < stuckAfter+killTimeout || stuck:
		case !seen:
			return ended, &HeldError{Path: path, Waited: waited}
		default: // the holders change
			return ended, nil
		}
	}
}

// processID identifies a process until the machine is rebooted.
type processID struct {
	pid   int
	start uint64
}

func (h Holder) id() processID { return processID{h.PID, h.Start} }

// updateFirstSeen returns when each present holder was first seen in an unbroken series of calls. before is the result of
// the previous call.
func updateFirstSeen(before map[processID]time.Time, holders []Holder, now time.Time) map[processID]time.Time {
	found := map[processID]time.Time{}
	for _, h := range holders {
		found[h.id()] = now
		if first, ok := before[h.id()]; ok {
			found[h.id()] = first
		}
	}
	return found
}

// killTimeout bounds the wait for a process that was killed.
const killTimeout = 10 * time.Second

func containsHolder(all []Holder, h Holder) bool {
	return slices.ContainsFunc(all, func(other Holder) bool { return other.id() == h.id() })
}

// ErrForeign means that Break may not kill a holder.
var ErrForeign = errors.New("that is no program of berth's: end it, or have it go on, by hand")

// endHolder kills a holder, if it still holds the lock of an open file. A process that is frozen by cgroup version 1 only ends when it
// isn't frozen, so it is moved to the root of the freezer.
func endHolder(h Holder, file int, isOwn func(string) bool) error {
	fd, err := unix.PidfdOpen(h.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", h.PID, err)
	}
	defer unix.Close(fd) //nolint:errcheck // a pidfd
	program, err := process.ReadLink("/proc", h.PID, "exe")
	if errors.Is(err, process.ErrStuck) {
		return err
	}
	if err != nil {
		return nil //nolint:nilerr // it has ended
	}
	holds := searchDescriptors("/proc", []lockedFile{describeFile(file)}, func(pid int) bool { return pid != h.PID })[0]
	if !process.Lives("/proc", h.PID, h.Start) || len(holds) == 0 {
		return nil
	}
	if !isOwn(strings.TrimSuffix(program, " (deleted)")) {
		return ErrForeign
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", h.PID, err)
	}
	if h.State == Frozen {
		if f, err := os.OpenFile(freezer+"/cgroup.procs", os.O_WRONLY, 0); err == nil {
			_, _ = f.WriteString(strconv.Itoa(h.PID)) // fails if the process is frozen by version 2
			f.Close()
		}
	}
	return nil
}
