package logs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/dirwatch"
	"github.com/berth-gpu/berth/internal/lock"
)

// Query says what of a log is wanted.
type Query struct {
	// Since and Until bound the entries' times; the zero time bounds nothing.
	Since, Until time.Time
	// Tail is how many lines from the end are wanted; negative means all.
	Tail int
	// Ended, if set, makes Read wait for more until it says that nothing is written
	// any more.
	Ended func() bool
	// Hold asks the writer to keep entries that weren't read yet, and to wait for the reader.
	Hold bool
	// Wake, if set, is closed when Ended has become true. The reader then reads at once.
	Wake <-chan struct{}
	// Idle, if set, is called when all was read that is there by now, and more is waited for,
	// with a moment (shortPause) between two calls at least. It says whether it wants to be
	// called again after a moment.
	Idle func() bool
}

// How long a reader waits that nothing wakes: an end without a trace in the directory is
// found by looking.
const (
	idlePause  = 500 * time.Millisecond
	shortPause = 50 * time.Millisecond
)

// Read hands out the entries of the log at path, the oldest first. A log that isn't
// there is empty. Entry.Text is valid until give returns.
func Read(ctx context.Context, path string, q Query, give func(Entry) error) error {
	r := &reader{path: path, query: q}
	defer r.closeFile()
	if err := r.openOldest(); err != nil {
		return err
	}
	if q.Tail >= 0 {
		last, err := r.readTail(q.Tail)
		if err != nil {
			return err
		}
		for _, e := range last {
			if err := give(e); err != nil {
				return err
			}
		}
	}
	return r.followLog(ctx, give)
}

// reader stands somewhere in the log's files.
type reader struct {
	path  string
	query Query
	file  *os.File // nil before the first
	buf   *bufio.Reader
	part  []byte // of an entry that isn't whole yet
}

func (r *reader) closeFile() {
	if r.file != nil {
		r.file.Close() // opened for reading
	}
}

// openOldest opens the oldest file.
func (r *reader) openOldest() error {
	for n := oldestNumber(r.path); n >= 0; n-- {
		ok, err := r.openNumbered(n)
		if ok || err != nil {
			return err
		}
	}
	return nil
}

// oldestNumber is the highest number of a file of the log, as far as they are without a gap
// of more than one.
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

// continueWith goes on with a file, and lets go of the one before.
func (r *reader) continueWith(f *os.File) error {
	if r.query.Hold {
		// A writer has the lock for moments, while it finds out whether somebody reads.
		if err := lock.Acquire(context.Background(), int(f.Fd()), lock.Shared); err != nil {
			return errors.Join(fmt.Errorf("hold log: %w", err), f.Close())
		}
	}
	r.closeFile()
	r.file, r.part = f, nil
	if r.buf == nil {
		r.buf = bufio.NewReaderSize(f, 64<<10)
	} else {
		r.buf.Reset(f)
	}
	return nil
}

// nextEntry returns the next entry of the files that are there now; false where there is
// none. What isn't an entry is passed over.
func (r *reader) nextEntry() (Entry, bool, error) {
	for {
		if r.file == nil {
			if err := r.openOldest(); err != nil || r.file == nil {
				return Entry{}, false, err
			}
		}
		line, err := r.buf.ReadSlice('\n')
		r.part = append(r.part, line...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
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

// moveToNext goes on to the file that was begun after this one, if there is one. The writer
// has finished a file before it gets a number.
func (r *reader) moveToNext() (bool, error) {
	own, err := r.file.Stat()
	if err != nil {
		return false, fmt.Errorf("read log: %w", err)
	}
	last := oldestNumber(r.path)
	for n := 0; n <= last; n++ {
		fi, err := os.Lstat(numberedPath(r.path, n))
		if err != nil || !os.SameFile(fi, own) {
			continue
		}
		if n == 0 {
			return false, r.restartEmptied(fi.Size())
		}
		return r.openAfter(n, own)
	}
	if last < 0 {
		return false, nil // the task was removed
	}
	r.file.Close() // it was dropped, and others too
	r.file = nil
	return true, nil
}

// openAfter goes on to the file that was begun after the one with number n, which this one has.
func (r *reader) openAfter(n int, own fs.FileInfo) (bool, error) {
	for next := n - 1; next >= 0; next-- {
		// All of this one was read after it got its number, or is now.
		if rest, err := r.buf.Peek(1); len(rest) > 0 {
			return true, err
		}
		f, err := os.Open(numberedPath(r.path, next))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("read log: %w", err)
		}
		// A writer changes numbers meanwhile, the highest first: as long as this file has its
		// own, so has the next.
		if fi, err := os.Lstat(numberedPath(r.path, n)); err != nil || !os.SameFile(fi, own) {
			return true, f.Close()
		}
		return true, r.continueWith(f)
	}
	return false, nil
}

// restartEmptied begins anew with a file that was emptied, as a log of one file is.
func (r *reader) restartEmptied(size int64) error {
	at, err := r.file.Seek(0, io.SeekCurrent)
	if err == nil && size < at {
		_, err = r.file.Seek(0, io.SeekStart)
		r.buf.Reset(r.file)
		r.part = r.part[:0]
	}
	return err
}

// tailEntry is an entry that begins a line, or goes on with one.
type tailEntry struct {
	Entry
	begins bool
}

// readTail reads all that is there and keeps the entries of the last n lines.
func (r *reader) readTail(n int) ([]Entry, error) {
	var last []tailEntry
	var cut [3]bool // the stream's last entry was a part
	for lines := 0; ; {
		e, ok, err := r.nextEntry()
		if err != nil {
			return nil, err
		}
		if !ok {
			return wholeLines(last), nil
		}
		if !r.isWanted(e) {
			continue
		}
		e.Text = slices.Clone(e.Text)
		last = append(last, tailEntry{e, !cut[e.Stream]})
		if !cut[e.Stream] {
			lines++
		}
		cut[e.Stream] = e.Partial
		for lines > n {
			if last[0].begins {
				lines--
			}
			last = last[1:]
		}
	}
}

// wholeLines leaves out the rest of lines whose beginning was dropped.
func wholeLines(last []tailEntry) []Entry {
	var begun [3]bool
	var all []Entry
	for _, k := range last {
		if begun[k.Stream] = begun[k.Stream] || k.begins; begun[k.Stream] {
			all = append(all, k.Entry)
		}
	}
	return all
}

func (r *reader) isWanted(e Entry) bool {
	q := r.query
	return !e.Time.Before(q.Since) && (q.Until.IsZero() || !e.Time.After(q.Until))
}

// followLog calls give for each entry, and waits for more entries until query.Ended returns true.
func (r *reader) followLog(ctx context.Context, give func(Entry) error) error {
	var changes dirwatch.Watch
	if r.query.Ended != nil {
		const events = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_DELETE_SELF
		changes = dirwatch.Open(filepath.Dir(r.path), events)
		defer changes.Close()
	}
	var lastIdle time.Time
	for {
		// Ended is called before the last read, so entries written before the end are read.
		ended := r.query.Ended == nil || r.query.Ended()
		for {
			e, ok, err := r.nextEntry()
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if !r.query.Until.IsZero() && e.Time.After(r.query.Until) {
				return nil
			}
			if r.isWanted(e) {
				if err := give(e); err != nil {
					return err
				}
			}
		}
		if ended {
			return nil
		}
		pause := idlePause
		if r.query.Idle != nil {
			if rest := shortPause - time.Since(lastIdle); rest > 0 {
				pause = rest
			} else if lastIdle = time.Now(); r.query.Idle() {
				pause = shortPause
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changes.Changed:
		case <-r.query.Wake:
		case <-time.After(pause):
		}
	}
}
