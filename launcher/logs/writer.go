// Package logs reads and writes the log of a detached task: files in the format of Kubernetes' container
// runtimes, for which tools exist.
//
//	2026-01-02T03:04:05.000000006Z stdout F a whole line
//	2026-01-02T03:04:05.000000007Z stderr P a part of a line
//
// The current file is "log". At its size limit it is renamed to log.1, log.1 to log.2 and so on; the
// last file is dropped. So the disk usage of a task's log is bounded. One process writes, and any number
// of processes may read concurrently.
//
// Source of the format: the CRI's "Log Format", as kubelet reads it.
package logs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
)

// Stream is an output stream of a task.
type Stream byte

// Streams of a task.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

func (s Stream) String() string {
	if s == Stderr {
		return "stderr"
	}
	return "stdout"
}

// Default limits of a log, and the least size of a file in bytes.
const (
	DefaultSize  = 10 << 20
	DefaultFiles = 3
	MinSize      = 64 << 10
)

// Writer appends to the log. It is used by one goroutine.
type Writer struct {
	path  string
	limit int64
	files int
	file  *os.File
	size  int64
	// prefix is the beginning of the entries that are being written, and buf has those entries.
	prefix, buf []byte
	// cut means that the stream's last entry was partial.
	cut [3]bool
	// lost is how many bytes could not be written since the last successful write, and cause why.
	lost  int
	cause error
	wait  func() bool // nil doesn't wait for readers
	// expected means that ExpectReader was called and no reader has come yet.
	expected bool
}

// WaitForReaders makes the writer wait before it drops a file that a reader holds (Query.Hold): it
// calls wait until the file is free or wait returns false. A log of one file is never held.
func (w *Writer) WaitForReaders(wait func() bool) { w.wait = wait }

// ExpectReader makes a writer with WaitForReaders also wait until the first reader has come.
func (w *Writer) ExpectReader() { w.expected = true }

// Open opens the log at path for appending. An incomplete entry of a writer that was killed is removed;
// the caller still has its data.
func Open(path string, size int64, files int) (*Writer, error) {
	if size <= 0 {
		size = DefaultSize
	}
	if files <= 0 {
		files = DefaultFiles
	}
	w := &Writer{path: path, limit: max(size, MinSize), files: files}
	if err := w.openFile(); err != nil {
		return nil, err
	}
	if err := w.truncateTorn(); err != nil {
		return nil, errors.Join(fmt.Errorf("repair log %s: %w", path, err), w.file.Close())
	}
	return w, nil
}

func (w *Writer) openFile() error {
	f, err := os.OpenFile(w.path, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	fi, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("open log: %w", err), f.Close())
	}
	w.file, w.size = f, fi.Size()
	return nil
}

// truncateTorn truncates the log after its last complete entry, and sets cut from that entry.
func (w *Writer) truncateTorn() error {
	var tail []byte
	for back := int64(4096); ; back *= 8 {
		from := max(0, w.size-back)
		tail = make([]byte, w.size-from)
		if _, err := w.file.ReadAt(tail, from); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if from == 0 || bytes.Count(tail, []byte("\n")) > 1 {
			break
		}
	}
	end := bytes.LastIndexByte(tail, '\n') + 1
	if torn := int64(len(tail) - end); torn > 0 {
		if err := w.file.Truncate(w.size - torn); err != nil {
			return err
		}
		w.size -= torn
	}
	if end == 0 {
		return nil
	}
	start := bytes.LastIndexByte(tail[:end-1], '\n') + 1
	if e, err := ParseEntry(tail[start : end-1]); err == nil {
		w.cut[e.Stream] = e.Partial
	}
	return nil
}

// batchSize is about how many bytes are written at once. Rotations happen between two batches.
const batchSize = 32 << 10

// Write appends output of a task. An incomplete line is written as a partial entry, so that no output is
// only in memory. An error means that output was lost; a later Write that succeeds logs how much.
func (w *Writer) Write(at time.Time, s Stream, data []byte) error {
	w.tellLoss(at)
	w.setPrefix(at, s)
	for len(data) > 0 {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		if len(line) > batchSize {
			line, rest, whole = line[:batchSize], data[batchSize:], false
		}
		w.appendEntry(s, line, whole)
		data = rest
		if len(w.buf) >= batchSize {
			w.flushEntries()
		}
	}
	w.flushEntries()
	return w.cause
}

// setPrefix sets the time and the stream of the next entries. Formatting the time costs ten times as much as
// copying it, and a task can write lines without text.
func (w *Writer) setPrefix(at time.Time, s Stream) {
	w.prefix = at.UTC().AppendFormat(w.prefix[:0], TimeFormat)
	w.prefix = append(append(append(w.prefix, ' '), s.String()...), ' ')
}

// appendEntry appends an entry of the stream that setPrefix has set.
func (w *Writer) appendEntry(s Stream, text []byte, whole bool) {
	tag := "P "
	if whole {
		tag = "F "
	}
	w.buf = append(append(append(append(w.buf, w.prefix...), tag...), text...), '\n')
	w.cut[s] = !whole
}

// TimeFormat of entries is RFC 3339 with nine digits of the fraction, so that entries sort as text.
const TimeFormat = "2006-01-02T15:04:05.000000000Z07:00"

func (w *Writer) flushEntries() {
	if len(w.buf) == 0 {
		return
	}
	err := w.rotateFor(int64(len(w.buf)))
	n := 0
	if err == nil {
		n, err = w.file.Write(w.buf)
	}
	w.size += int64(n)
	if err != nil {
		// An incomplete entry would corrupt the next one.
		if n > 0 && w.file.Truncate(w.size-int64(n)) == nil {
			w.size -= int64(n)
		}
		w.lost += len(w.buf)
		w.cause = err
	}
	w.buf = w.buf[:0]
}

// tellLoss writes a line about the output that could not be logged.
func (w *Writer) tellLoss(at time.Time) {
	if w.lost == 0 {
		return
	}
	lost, cause := w.lost, w.cause
	w.lost, w.cause = 0, nil
	cut := w.cut[Stderr]
	w.setPrefix(at, Stderr)
	w.appendEntry(Stderr, []byte("berth: about "+strconv.Itoa(lost)+" bytes of output were lost: "+cause.Error()), true)
	w.cut[Stderr] = cut
	w.flushEntries()
	if w.cause != nil {
		w.lost = lost
	}
}

// rotateFor rotates the files if the current one has no space for n bytes. A writer that is killed
// between two renames leaves a gap in the numbers, which readers tolerate.
func (w *Writer) rotateFor(n int64) error {
	if w.size == 0 || w.size+n <= w.limit {
		return nil
	}
	if w.files == 1 {
		if err := w.file.Truncate(0); err != nil {
			return err
		}
		w.size = 0
		return nil
	}
	if err := w.awaitReaders(); err != nil {
		return err
	}
	for i := w.files - 1; i > 0; i-- {
		from := numberedPath(w.path, i-1)
		if err := os.Rename(from, numberedPath(w.path, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	old := w.file
	if err := w.openFile(); err != nil {
		return err
	}
	return old.Close()
}

// awaitReaders waits until no reader holds the file that is to be dropped.
func (w *Writer) awaitReaders() error {
	if w.wait == nil {
		return nil
	}
	for {
		held, last, err := w.readersHold()
		if err != nil {
			return err
		}
		w.expected = w.expected && !held
		if !w.expected && !last || !w.wait() {
			return nil
		}
	}
}

// readersHold reports whether readers hold (Query.Hold) any file of the log, and whether they hold
// the last one, which the next rotation would drop.
func (w *Writer) readersHold() (some, last bool, err error) {
	for n := w.files - 1; n >= 0 && !some; n-- {
		some, err = isHeld(numberedPath(w.path, n))
		if err != nil {
			return false, false, err
		}
		if n == w.files-1 {
			last = some
		}
	}
	return some, last, nil
}

func isHeld(path string) (bool, error) {
	f, err := lock.TryOpen(path, lock.Exclusive)
	switch {
	case errors.Is(err, lock.ErrBusy):
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for readers of the log: %w", err)
	}
	return false, f.Close()
}

func numberedPath(path string, n int) string {
	if n == 0 {
		return path
	}
	return path + "." + strconv.Itoa(n)
}
