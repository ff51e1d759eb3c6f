package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/json"
	"github.com/berth-gpu/berth/internal/lock"
)

// eventLog is the history of a ledger: a file of JSON lines, which is renamed to
// events.log.1 and so on when it has grown to max bytes. Only root reads it.
// It is written without the ledger's lock. A failed write is logged and fails no change of the
// ledger.
type eventLog struct {
	path string
	json *json.Codec
	max  int64
	keep int // how many old files
}

// event is one line of the log.
type event struct {
	Time time.Time `json:"time"`
	// Event is "acquired", "bound", "released", "reaped" or "repaired", or the name that the caller
	// of LogRemovals chose.
	Event   string   `json:"event"`
	Lease   string   `json:"lease"`
	Request string   `json:"request,omitempty"`
	Devices []string `json:"devices"` // UUIDs
	Owner   Owner    `json:"owner"`
	// Waited is how long the request waited in the queue, Held how long the lease
	// lasted, both in seconds.
	Waited float64 `json:"waited_s,omitempty"`
	Held   float64 `json:"held_s,omitempty"`
	Reason string  `json:"reason,omitempty"`
	// Removed lists what was removed from the container's spec. Reason has the same as text, joined
	// by "; "; older versions wrote only Reason.
	Removed []edits.Removal `json:"removed,omitempty"`
}

// addEvent records an event, to be logged after the transaction was written.
func (tx *transaction) addEvent(name string, l Lease, why string) *event {
	e := event{
		Time: tx.now.Round(0), Event: name, Lease: l.ID, Request: l.Request, Owner: l.Owner, Reason: why,
	}
	for _, d := range l.Devices {
		e.Devices = append(e.Devices, d.UUID)
	}
	if name == "released" || name == "reaped" {
		e.Held = tx.now.Sub(l.Since).Seconds()
	}
	tx.events = append(tx.events, e)
	return &tx.events[len(tx.events)-1]
}

// append adds the events in one write, so that lines of several processes do not mix.
func (g eventLog) append(events []event) error {
	if len(events) == 0 {
		return nil
	}
	b := make([]byte, 0, 1024*len(events))
	for _, e := range events {
		var err error
		if b, err = g.json.Append(b, &e); err != nil {
			return err
		}
		b = append(b, '\n')
	}
	fd, err := g.openFile()
	if err != nil {
		return err
	}
	if endsInsideLine(fd) {
		b = append([]byte{'\n'}, b...)
	}
	n, err := unix.Write(fd, b)
	if err == nil && n < len(b) { // a disk that has become full cuts a write, and gives the reason to the next one
		_, err = unix.Write(fd, b[n:])
	}
	if err == nil {
		err = g.rotateIfFull(fd)
	}
	return errors.Join(err, unix.Close(fd))
}

// endsInsideLine reports whether the file's last line has no line end, because a full disk has cut
// it.
func endsInsideLine(fd int) bool {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size == 0 {
		return false
	}
	last := make([]byte, 1)
	n, err := unix.Pread(fd, last, st.Size-1)
	return err == nil && n == 1 && last[0] != '\n'
}

func (g eventLog) openFile() (int, error) {
	const flags = unix.O_RDWR | unix.O_APPEND | unix.O_CREAT | unix.O_NONBLOCK
	fd, _, err := openFile(g.path, flags, 0o640)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(g.path), 0o755); err != nil {
			return -1, err
		}
		fd, _, err = openFile(g.path, flags, 0o640)
	}
	return fd, err
}

// rotateIfFull renames the file if it has grown too large. Only the process that gets the lock does
// so; the others continue to write.
func (g eventLog) rotateIfFull(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size < g.max {
		return err
	}
	if err := lock.TryAcquire(fd, lock.Exclusive); err != nil {
		if errors.Is(err, lock.ErrBusy) {
			return nil
		}
		return err
	}
	if !lock.IsAt(fd, g.path) {
		return nil // another process was quicker
	}
	name := func(n int) string { return fmt.Sprintf("%s.%d", g.path, n) }
	for n := g.keep - 1; n >= 1; n-- {
		if err := os.Rename(name(n), name(n+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Rename(g.path, name(1))
}

// LoggedRemovals returns the removals of the latest event with this name and lease that the log
// still has. An event of an older version has only reason.
func (l *Ledger) LoggedRemovals(name, lease string) (removed []edits.Removal, reason string, err error) {
	paths := []string{l.events.path}
	for n := 1; n <= l.events.keep; n++ {
		paths = append(paths, fmt.Sprintf("%s.%d", l.events.path, n))
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, "", err
		}
		for line := range bytes.Lines(data) {
			if !bytes.Contains(line, []byte(lease)) {
				continue // nearly all
			}
			var e event
			if l.events.json.Unmarshal(line, &e) == nil && e.Event == name && e.Lease == lease {
				removed, reason = e.Removed, e.Reason
			}
		}
		if reason != "" {
			return removed, reason, nil
		}
	}
	return nil, "", nil
}

// The removals of one event have at most maxRemovals bytes as JSON, and each of their
// texts has at most maxEventText. A container chooses how many nodes and mounts it has and
// at which paths; without a limit, few containers could rotate all older events away.
const (
	maxRemovals  = 32 << 10
	maxEventText = 256
)

// limitRemovals returns the removals with long texts cut. Those that an event has no space
// for are counted in a remark: devices and mounts, of which a container can have any number.
func (g eventLog) limitRemovals(removed []edits.Removal) []edits.Removal {
	var devices, others, kept []edits.Removal
	for _, r := range removed {
		r.Name, r.Source, r.Why = cutText(r.Name), cutText(r.Source), cutText(r.Why)
		kept = append(kept, r)
		if r.Kind == "device" || r.Kind == "mount" {
			devices = append(devices, r)
		} else {
			others = append(others, r)
		}
	}
	size, sorted := 0, slices.Concat(others, devices)
	for i := range sorted {
		text, err := g.json.Append(nil, &sorted[i])
		if size += len(text); err != nil || size > maxRemovals {
			return append(sorted[:i], edits.Remark("and %d more", len(sorted)-i))
		}
	}
	return kept
}

func cutText(text string) string {
	if len(text) <= maxEventText {
		return text
	}
	return strings.ToValidUTF8(text[:maxEventText], "") + "…"
}

// LogRemovals writes to the event log what was removed from a container's spec, cut to maxRemovals.
// It changes no lease. lease is "" for a container without a lease. A log that can't be written is reported
// to Options.Log.
func (l *Ledger) LogRemovals(name, lease string, owner Owner, removed []edits.Removal) {
	removed = l.events.limitRemovals(removed)
	owner.Name, owner.Command = sanitizeText(owner.Name), sanitizeText(owner.Command)
	var texts []string
	for _, r := range removed {
		texts = append(texts, r.String())
	}
	e := event{Time: time.Now().UTC(), Event: name, Lease: lease, Owner: owner, Reason: strings.Join(texts, "; "), Removed: removed}
	if err := l.events.append([]event{e}); err != nil {
		l.log.Warn("write event log", "error", err)
	}
}
