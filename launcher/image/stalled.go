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

// A process that unpacks a layer may be stopped, or its registry may be slow, while other processes wait for the
// same layer. As long as it makes progress, it updates the modification time of the layer's directory. A process
// that waits and sees no change for Store.Stall renames the directory (sets it aside) and unpacks the layer
// itself. The slow process keeps the lock of the renamed directory and writes through its descriptor; it detects
// the takeover when it finishes.
//
// A layer becomes complete, or is taken over, under the lock of the directory above it.

var (
	errStalled   = errors.New("the process that unpacks the layer makes no progress")
	errTakenOver = errors.New("another process has taken over the layer")
)

// minProgress is how many bytes of a layer have to be read within Store.Stall.
const minProgress = 4 << 20

// stallWatch detects that a layer's directory doesn't change. With a zero limit it detects nothing.
type stallWatch struct {
	limit time.Duration
	last  unix.Stat_t
	since time.Time // by the monotonic clock
}

// stalled reports whether the directory has not changed for the limit.
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

// showProgress updates the modification time of a layer's directory each time that minProgress bytes, or all,
// were read, until stop is called.
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
				_ = unix.Futimes(int(held.Fd()), []unix.Timeval{now, now}) // on an error another process may take over
			}
		}
	}()
	return func() { close(done); <-ended }
}

// takeOver sets the directory of an incomplete layer aside, unless it has changed since it was found stalled: its
// process has made progress, or another process has taken it over.
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

// setAsideOld sets the directory of a layer, locked by held, aside and returns its new path. If it has a part
// file that is younger than keep, it stays, and aside is "". The error Is errTakenOver if another process has
// taken the layer over.
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

// finishLayer makes a layer complete. The error Is errTakenOver if another process has taken the layer over.
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

// openPath returns a path of an open directory that stays valid when the directory is renamed.
func openPath(dir *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) }

// asideMark is in the names of directories that were set aside, and in no layer's name.
const asideMark = ".old-"

func asidePath(home string) string { return home + asideMark + rand.Text() }

func isAside(home string) bool { return strings.Contains(filepath.Base(home), asideMark) }

// removeAside removes a layer's directory, whose lock the caller holds. It renames the directory first, so that
// other processes neither wait for the removal nor use a partly removed layer.
func removeAside(home string) error {
	aside := asidePath(home)
	if err := os.Rename(home, aside); err != nil {
		return err
	}
	return removetree.RemoveAll(aside)
}

// sweepAside removes directories that were set aside and aren't locked. Those that can't be removed are left for
// the next call.
func (s Store) sweepAside() {
	for _, algorithm := range algorithms() {
		found, err := filepath.Glob(filepath.Join(escapePattern(s.Dir), algorithm, "*"+asideMark+"*"))
		if err != nil {
			continue // doesn't happen: the pattern is well-formed
		}
		for _, dir := range found {
			held, err := tryLock(dir, lock.Exclusive, false)
			if held == nil || err != nil {
				continue
			}
			_ = removetree.RemoveAll(dir) // see above
			held.Close()                  // a lock
		}
	}
}
