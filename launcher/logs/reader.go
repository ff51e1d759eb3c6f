package logs

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/dirwatch"
)

// Query selects entries of a log.
type Query struct {
	// Since and Until bound the entries' times; the zero time bounds nothing.
	Since, Until time.Time
	// Tail is how many lines from the end are wanted; negative means all.
	Tail int
	// Ended, if set, makes Read wait for more entries until Ended returns true.
	Ended func() bool
	// Hold makes the writer wait for this reader before it drops a file.
	Hold bool
	// Wake, if set, is closed when Ended has become true, so that the reader doesn't wait for a pause.
	Wake <-chan struct{}
	// Idle, if set, is called when all present entries were read and Read waits for more, at most once
	// in shortPause. If it returns true, it is called again after shortPause.
	Idle func() bool
}

// How long a reader waits without an event before it calls Ended again: an end may change no file in the
// directory.
const (
	idlePause  = 500 * time.Millisecond
	shortPause = 50 * time.Millisecond
)

// Read calls give for the selected entries of the log at path, the oldest first. A missing log is empty.
// Without Ended, Read gives no entries that are written after it began, so that it ends however fast the
// task writes; the same is true of the entries that Tail counts. Entries that the writer drops before they
// are read are left out. Entry.Text is valid until give returns.
func Read(ctx context.Context, path string, q Query, give func(Entry) error) error {
	r := &reader{path: path, query: q}
	defer func() { r.closeFile(); r.removeBound() }()
	if q.Ended == nil || q.Tail >= 0 {
		if err := r.setBound(); err != nil {
			return err
		}
	}
	if q.Tail >= 0 {
		last, err := r.readTail(ctx, q.Tail)
		if err != nil {
			return err
		}
		for _, e := range last {
			if err := give(e); err != nil {
				return err
			}
		}
	}
	if q.Ended != nil {
		r.removeBound()
	}
	return r.followLog(ctx, give)
}

// tailEntry is an entry. begins means that the entry begins a line of the task.
type tailEntry struct {
	Entry
	begins bool
}

// readTail reads all present entries and returns those of the last n lines.
func (r *reader) readTail(ctx context.Context, n int) ([]Entry, error) {
	var last []tailEntry
	var cut [3]bool // the stream's last entry was partial
	for lines := 0; ; {
		e, ok, err := r.nextEntry()
		if err != nil {
			return nil, err
		}
		if !ok || ctx.Err() != nil { // a task may write faster than this reads
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

// wholeLines removes entries of lines whose beginning isn't in last.
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
			if ctx.Err() != nil {
				return nil
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
