package image

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/removetree"
)

// A process that unpacks a layer may be stopped, or its registry may be slow or silent, and
// other processes want the same layer, maybe of another registry. While it gets on, the time of
// the layer's directory changes. A process that waits and sees no change for a while sets the
// directory aside and begins anew. The directory stays locked by the one that was too slow,
// which writes by its descriptor, and finds out at the end.
//
// A layer becomes complete, or is taken over, under the lock of the directory above it.

var (
	errStalled   = errors.New("the process that unpacks the layer makes no progress")
	errTakenOver = errors.New("another process has taken over the layer")
)

// minProgress is how many bytes of a layer have to come within Store.Stall.
const minProgress = 4 << 20

// stallWatch sees whether a layer's directory changes. The zero value sees no stall.
type stallWatch struct {
	limit time.Duration
	last  unix.Stat_t
	since time.Time // by the monotonic clock
}

// stalled reports whether there was no change for the limit.
func (w *stallWatch) stalled(home string) bool {
	var now unix.Stat_t
	if w.limit == 0 || unix.Lstat(home, &now) != nil {
		return false
	}
	if w.since.IsZero() || now.Ino != w.last.Ino || now.Mtim != w.last.Mtim {
		w.last, w.since = now, time.Now()
	}
	return time.Since(w.since) >= w.limit
}

func (s Store) stallLimit() time.Duration { return cmp.Or(s.Stall, time.Minute) }

// showProgress changes the time of a layer's directory when minProgress was read, or all, until
// the returned function is called.
func (w *unpacking) showProgress(l layer, held *os.File) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	pause := w.store.stallLimit() / 10
	go func() {
		defer close(ended)
		for told := int64(0); ; {
			select {
			case <-done:
				return
			case <-time.After(pause):
			}
			if n := w.progress.bytesOf(l); n-told >= minProgress || n < told || n >= l.blob.Size {
				told = n
				now := unix.NsecToTimeval(time.Now().UnixNano())
				_ = unix.Futimes(int(held.Fd()), []unix.Timeval{now, now}) // at worst somebody takes over
			}
		}
	}()
	return func() { close(done); <-ended }
}

// takeOver sets the directory of a layer aside that isn't complete, if it still is as it was when
// it was found stalled: another process may have taken it over, or it goes on.
func takeOver(ctx context.Context, home string, stalled unix.Stat_t) (taken bool, err error) {
	gate, err := lock.Open(ctx, filepath.Dir(home), lock.Exclusive)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, gate.Close()) }()
	var now unix.Stat_t
	if unix.Lstat(home, &now) != nil || now.Ino != stalled.Ino || now.Mtim != stalled.Mtim || pathExists(filesDir(home)) {
		return false, nil
	}
	if err := os.Rename(home, asidePath(home)); err != nil {
		return false, err
	}
	return true, nil
}

// setAsideOld sets the directory of a layer aside, which is locked by held, unless it has a download that is
// younger than keep: aside is "" then. The error Is errTakenOver if the directory was taken over.
func setAsideOld(ctx context.Context, home string, held *os.File, keep time.Duration) (aside string, err error) {
	gate, err := lock.Open(ctx, filepath.Dir(home), lock.Exclusive)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, gate.Close()) }()
	if !lock.IsAt(int(held.Fd()), home) {
		return "", errTakenOver
	}
	parts, err := filepath.Glob(filepath.Join(escapePattern(home), "part-*"))
	if err != nil {
		return "", err
	}
	for _, part := range parts {
		if fi, err := os.Lstat(part); err == nil && time.Since(fi.ModTime()) < keep {
			return "", nil
		}
	}
	aside = asidePath(home)
	return aside, os.Rename(home, aside)
}

// finishLayer makes a layer complete, unless it was taken over.
func finishLayer(ctx context.Context, home string, held *os.File) (err error) {
	gate, err := lock.Open(ctx, filepath.Dir(home), lock.Exclusive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gate.Close()) }()
	if !lock.IsAt(int(held.Fd()), home) {
		return errTakenOver
	}
	return os.Rename(filepath.Join(home, "tmp"), filesDir(home))
}

// openPath leads to an open directory, wherever it is by now.
func openPath(dir *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) }

// asideMark is in no layer's name.
const asideMark = ".old-"

func asidePath(home string) string { return home + asideMark + rand.Text() }

func isAside(home string) bool { return strings.Contains(filepath.Base(home), asideMark) }

// removeAside removes a layer's directory, whose lock the caller holds, in two steps: nobody
// waits for the second, or takes what is left for a layer.
func removeAside(home string) error {
	aside := asidePath(home)
	if err := os.Rename(home, aside); err != nil {
		return err
	}
	return removetree.RemoveAll(aside)
}

// sweepAside removes what was set aside and has no process that writes to it. What can't be
// removed is left for the next time.
func (s Store) sweepAside() {
	for _, algorithm := range algorithms() {
		found, err := filepath.Glob(filepath.Join(escapePattern(s.Dir), algorithm, "*"+asideMark+"*"))
		if err != nil {
			continue // a pattern of ours is never wrong
		}
		for _, dir := range found {
			held, err := tryLock(dir, lock.Exclusive, false)
			if held == nil || err != nil {
				continue
			}
			_ = removetree.RemoveAll(dir) // see above
			held.Close()                  // only locked
		}
	}
}
