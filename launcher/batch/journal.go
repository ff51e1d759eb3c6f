package batch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
)

// Kind is what a record of a journal says.
type Kind string

// The kinds of records.
const (
	Started Kind = "start"  // an attempt of a task has been given to a worker
	Ended   Kind = "end"    // an attempt has ended
	Skipped Kind = "skip"   // a task is not run, because one that it waits for has failed
	Resumed Kind = "resume" // another runner goes on: tasks that ran have not ended
	Again   Kind = "again"  // a task that had ended without success is pending again
)

// Record is one record of a journal.
type Record struct {
	Kind Kind      `json:"kind"`
	At   time.Time `json:"at"`
	// Task is its number, 0 in records of the whole batch.
	Task int `json:"task,omitempty"`
	// Devices that the task could use, by index; in records of kind Started.
	Devices string `json:"devices,omitempty"`
	// Slot is the number of the worker, from 1; in records of kind Started.
	Slot int   `json:"slot,omitempty"`
	Exit *Exit `json:"exit,omitempty"`
}

// Exit is how an attempt of a task has ended.
type Exit struct {
	// Code is the exit code, or 128 plus the number of the signal.
	Code int `json:"code"`
	// Why explains an end that isn't the command's own, such as "timed out".
	Why string `json:"why,omitempty"`
	// Lost means that the worker ended before the task did: the attempt doesn't count.
	Lost bool `json:"lost,omitempty"`
	// Seconds is the run time.
	Seconds float64 `json:"seconds"`
}

// Failed reports whether the attempt has failed.
func (e Exit) Failed() bool { return e.Code != 0 || e.Lost }

// Journal is the file that says how far a batch has come. Each record is a line: the CRC-32C of its text in eight hexadecimal digits, the length of the text
// in bytes, and the text, which is JSON. A write(2) appends a whole record, so that a process that is killed loses none that it has written; after a loss of
// power the last ones may be missing or torn.
//
// A Journal is used by one goroutine at a time, and by one process: [OpenJournal] locks the file.
type Journal struct{ file *os.File }

// ErrLocked means that another process uses a journal.
var ErrLocked = errors.New("another berth runs this batch")

// OpenJournal opens the journal at path, creates it if it is missing, locks it, calls each for its records in their order, and removes a torn end. The error Is
// ErrLocked if another process uses it.
func OpenJournal(path string, each func(Record)) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = lockJournal(f)
	var text []byte
	if err == nil {
		text, err = io.ReadAll(f)
	}
	if err == nil {
		err = f.Truncate(int64(ParseJournal(text, each)))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open journal %s: %w", path, err), f.Close())
	}
	return &Journal{f}, nil
}

// lockTimeout is how long OpenJournal waits for [Store.IsRunning] of another process, which locks a journal for a moment.
const lockTimeout = 100 * time.Millisecond

func lockJournal(f *os.File) error {
	for last := time.Now().Add(lockTimeout); ; time.Sleep(time.Millisecond) {
		err := lock.TryAcquire(int(f.Fd()), lock.Exclusive)
		switch {
		case !errors.Is(err, lock.ErrBusy):
			return err
		case time.Now().After(last):
			return ErrLocked
		}
	}
}

// ReadJournal calls each for the records of the journal at path, which another process may be writing.
func ReadJournal(path string, each func(Record)) error {
	text, err := os.ReadFile(path)
	if err == nil {
		ParseJournal(text, each)
	}
	return err
}

// ParseJournal calls each for the records of a journal up to the first that is torn or damaged, and returns where that one begins.
func ParseJournal(text []byte, each func(Record)) (end int) {
	for end < len(text) {
		line, _, whole := bytes.Cut(text[end:], []byte("\n"))
		r, ok := parseRecord(line)
		if !whole || !ok {
			break
		}
		each(r)
		end += len(line) + 1
	}
	return end
}

func parseRecord(line []byte) (r Record, ok bool) {
	sum, rest, _ := bytes.Cut(line, []byte(" "))
	length, body, _ := bytes.Cut(rest, []byte(" "))
	n, err := strconv.Atoi(string(length))
	if err != nil || n != len(body) || string(sum) != formatChecksum(body) {
		return r, false
	}
	return r, json.Unmarshal(body, &r) == nil
}

func formatChecksum(body []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))) // the table is made once
}

// Append writes a record.
func (j *Journal) Append(r Record) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	line := fmt.Appendf(nil, "%s %d %s\n", formatChecksum(body), len(body), body)
	n, err := j.file.Write(line)
	if err != nil && n > 0 { // a full disk: the next record must not follow half a line
		if st, e := j.file.Stat(); e == nil {
			err = errors.Join(err, j.file.Truncate(st.Size()-int64(n)))
		}
	}
	return err
}

// Close writes the journal to disk and unlocks it.
func (j *Journal) Close() error { return errors.Join(j.file.Sync(), j.file.Close()) }
