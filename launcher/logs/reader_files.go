package logs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/berth-gpu/berth/internal/lock"
)

// reader is a position in the log's files.
type reader struct {
	path  string
	query Query
	file  *os.File // nil before the first
	buf   *bufio.Reader
	part  []byte // the beginning of an incomplete entry

	// bounded means that the log ends where it ended when setBound was called. bound describes the newest file of
	// that time, and newest is that file; nil without one, and newest also once file has taken its place.
	bounded  bool
	newest   *os.File
	bound    fs.FileInfo
	onNewest bool  // file is the newest file of that time
	taken    int64 // how many bytes of file nextEntry has read
}

func (r *reader) closeFile() {
	if r.file != nil {
		r.file.Close() // opened for reading
	}
}

// setBound makes the present end of the log the end for nextEntry, until removeBound is called.
func (r *reader) setBound() error {
	r.bounded = true
	// During a rotation, and after one that was killed, the newest file has a number.
	for n := 0; n <= oldestNumber(r.path); n++ {
		f, err := os.Open(numberedPath(r.path, n))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		r.newest = f
		if r.bound, err = f.Stat(); err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		return nil
	}
	return nil
}

// removeBound makes nextEntry give all entries that are written. It may be called without setBound.
func (r *reader) removeBound() {
	if r.bounded = false; r.newest != nil {
		r.newest.Close() // opened for reading
		r.newest = nil
	}
}

// openOldest opens the oldest file. If a bounded reader finds that all files up to newest were dropped, it
// continues with newest, which it has open.
func (r *reader) openOldest() error {
	if r.bounded && r.newest == nil {
		return nil
	}
	for n := oldestNumber(r.path); n >= 0; n-- {
		ok, err := r.openNumbered(n)
		if err != nil {
			return err
		}
		if ok {
			break
		}
	}
	if r.newest == nil {
		return nil
	}
	// Files are dropped in the order of their age: as long as newest wasn't, the oldest file isn't newer.
	fi, err := r.newest.Stat()
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	if !isDropped(fi) {
		return nil
	}
	f := r.newest
	r.newest = nil
	return r.continueWith(f)
}

// isDropped reports whether the writer has dropped a file.
func isDropped(fi fs.FileInfo) bool { return fi.Sys().(*syscall.Stat_t).Nlink == 0 }

// oldestNumber returns the highest number of a file of the log, -1 without files. Numbers after a gap of
// two are ignored; a writer that is killed in a rotation leaves a gap of one.
func oldestNumber(path string) int {
	found := -1
	for n := 0; n <= found+2; n++ {
		if _, err := os.Lstat(numberedPath(path, n)); err == nil {
			found = n
		}
	}
	return found
}

func (r *reader) openNumbered(n int) (bool, error) {
	f, err := os.Open(numberedPath(r.path, n))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read log: %w", err)
	}
	return true, r.continueWith(f)
}

// continueWith closes the current file and continues with f.
func (r *reader) continueWith(f *os.File) error {
	if r.query.Hold {
		// A writer holds the lock only briefly, to check for readers.
		if err := lock.Acquire(context.Background(), int(f.Fd()), lock.Shared); err != nil {
			return errors.Join(fmt.Errorf("hold log: %w", err), f.Close())
		}
	}
	fi, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("read log: %w", err), f.Close())
	}
	r.closeFile()
	r.file, r.part = f, nil
	r.onNewest, r.taken = r.bounded && os.SameFile(fi, r.bound), 0
	if r.buf == nil {
		r.buf = bufio.NewReaderSize(f, 64<<10)
	} else {
		r.buf.Reset(f)
	}
	return nil
}

// nextEntry returns the next entry of the present files, false if there is none or the bound is reached.
// Invalid lines are skipped.
func (r *reader) nextEntry() (Entry, bool, error) {
	for {
		if r.file == nil {
			if err := r.openOldest(); err != nil || r.file == nil {
				return Entry{}, false, err
			}
		}
		if r.bounded && r.onNewest && r.taken >= r.bound.Size() {
			return Entry{}, false, nil
		}
		line, err := r.buf.ReadSlice('\n')
		r.part, r.taken = append(r.part, line...), r.taken+int64(len(line))
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && r.bounded && r.onNewest: // the writer has removed an incomplete entry
			return Entry{}, false, nil
		case errors.Is(err, io.EOF):
			if moved, err := r.moveToNext(); !moved || err != nil {
				return Entry{}, false, err
			}
			continue
		case err != nil:
			return Entry{}, false, fmt.Errorf("read log: %w", err)
		}
		e, bad := ParseEntry(r.part[:len(r.part)-1])
		r.part = r.part[:0]
		if bad == nil {
			return e, true, nil
		}
	}
}

// moveToNext continues with the file that was started after the current one, if there is one. The writer
// doesn't write to a file once it has a number.
func (r *reader) moveToNext() (bool, error) {
	// A rotation can hide the file from a search that runs at the same time.
	for searches := 0; searches < 100; searches++ {
		own, err := r.file.Stat()
		if err != nil {
			return false, fmt.Errorf("read log: %w", err)
		}
		if isDropped(own) {
			break // the writer has dropped this file, and maybe later ones
		}
		for n := oldestNumber(r.path); n >= 0; n-- {
			fi, err := os.Lstat(numberedPath(r.path, n))
			switch {
			case err != nil || !os.SameFile(fi, own):
			case n == 0:
				return false, r.restartEmptied(fi.Size())
			default:
				return r.openAfter(n, own)
			}
		}
	}
	if oldestNumber(r.path) < 0 {
		return false, nil // the task was removed
	}
	r.closeFile()
	r.file = nil
	return true, nil
}

// openAfter continues with the file that was started after the current one, whose number is n.
func (r *reader) openAfter(n int, own fs.FileInfo) (bool, error) {
	// The current file has a number, so it doesn't grow: what Peek finds is its rest.
	if rest, err := r.buf.Peek(1); len(rest) > 0 {
		return true, err
	}
	next := n - 1
	for ; next >= 0 && !hasFile(r.path, next); next-- {
	}
	if next < 0 {
		return false, nil
	}
	f, err := os.Open(numberedPath(r.path, next))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read log: %w", err)
	}
	// The writer renames files during a rotation, the highest number first. If the current file still has
	// number n and there is still none between, the file that was opened is the next one.
	fi, err := os.Lstat(numberedPath(r.path, n))
	same := err == nil && os.SameFile(fi, own)
	for between := next + 1; between < n; between++ {
		same = same && !hasFile(r.path, between)
	}
	if !same {
		return true, f.Close()
	}
	return true, r.continueWith(f)
}

func hasFile(path string, n int) bool {
	_, err := os.Lstat(numberedPath(path, n))
	return err == nil
}

// restartEmptied starts at the beginning of the file if it was truncated, as a log of one file is.
func (r *reader) restartEmptied(size int64) error {
	at, err := r.file.Seek(0, io.SeekCurrent)
	if err == nil && size < at {
		_, err = r.file.Seek(0, io.SeekStart)
		r.buf.Reset(r.file)
		r.part = r.part[:0]
	}
	return err
}
