package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Repaired is the result of Repair.
type Repaired struct {
	View
	// Reason is why the ledger couldn't be used, nil if it could: then nothing was done.
	Reason error
	// Moved is the new path of the damaged ledger, "" if there was none.
	Moved string
	// Dropped are the leases that weren't kept.
	Dropped []Dropped
}

// Dropped is a lease that Repair didn't keep.
type Dropped struct {
	// File is the file that has the lease. Lease is zero if it couldn't be read.
	File  string
	Lease Lease
	Why   string
}

// Repair replaces a ledger that can't be trusted by one rebuilt from the receipts of the leases (and
// from what of the damaged file still makes sense): kept are those whose holders live. The damaged
// ledger is moved aside, never removed. Directories that other users could write to get owner and
// mode back. The queue isn't rebuilt: waiting processes enqueue themselves again. An intact ledger
// is left alone.
func (l *Ledger) Repair(ctx context.Context) (Repaired, error) {
	me, err := l.world.Self()
	if err != nil {
		return Repaired{}, err
	}
	reason := l.restoreOwnership()
	if err := l.store.makeDirs(); err != nil {
		return Repaired{}, err
	}
	if err := l.replaceLock(); err != nil {
		return Repaired{}, err
	}
	var r Repaired
	var events []event
	err = l.store.withLock(ctx, l.limit, func() error {
		st, found, err := l.store.readFull()
		if err == nil && !found {
			err = l.store.checkNotLost()
		}
		if err == nil && reason == nil {
			r = Repaired{View: l.buildView(me, st)}
			return nil
		}
		r, events, err = l.rebuildLedger(me, cmp.Or(err, reason))
		return err
	})
	if werr := l.events.append(events); werr != nil {
		l.log.Warn("write event log", "error", werr)
	}
	return r, err
}

// restoreOwnership gives the directories to root, or to this user, and lets no other user write to
// them. It returns what was wrong with them.
func (l *Ledger) restoreOwnership() (reason error) {
	for _, dir := range []string{l.store.dir, l.store.receiptsDir()} {
		err := checkDir(dir)
		if !errors.Is(err, ErrOwnership) {
			continue
		}
		reason = err
		fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_RDONLY, 0)
		if err != nil {
			continue // prepare returns the error
		}
		if err := cmp.Or(unix.Fchown(fd, os.Geteuid(), os.Getegid()), unix.Fchmod(fd, 0o755)); err != nil {
			l.log.Warn("take back directory", "path", dir, "error", err)
		}
		_ = unix.Close(fd) // nothing was written
	}
	return reason
}

// replaceLock removes a lock file that other users could have opened. No process of berth holds it,
// because berth refuses such a file.
func (l *Ledger) replaceLock() error {
	path := l.store.lockPath()
	fd, _, err := openFile(path, unix.O_RDWR, 0)
	switch {
	case err == nil:
		_ = unix.Close(fd) // nothing was written
	case errors.Is(err, ErrOwnership):
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("replace lock: %w", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return nil
}

// rebuildLedger makes the new ledger; the caller holds the lock. Killed after the move
// and before the write, it leaves no ledger but all receipts, from which the next
// change recovers the same.
func (l *Ledger) rebuildLedger(me self, reason error) (Repaired, []event, error) {
	r := Repaired{Reason: reason}
	kept, dropped, err := l.readReceipts(me)
	if err != nil {
		return r, nil, err
	}
	kept, r.Dropped = l.salvageLeases(me, kept, dropped, reason)
	tx := &transaction{state: &state{}, ledger: l, me: me, dirty: true}
	tx.now, tx.uptime = l.world.Now()
	for _, k := range kept {
		tx.leases = append(tx.leases, newRecord(k))
		tx.put = append(tx.put, k)
		tx.addEvent("repaired", k, reason.Error())
	}
	for _, d := range r.Dropped {
		if d.Lease.ID != "" {
			tx.addEvent("reaped", d.Lease, d.Why)
		}
	}
	if r.Moved, err = l.moveAside(tx.now.Format("20060102T150405.000")); err != nil {
		return r, nil, err
	}
	l.step("moved aside")
	if err := tx.commit(); err != nil {
		return r, nil, err
	}
	r.View = l.buildView(me, *tx.state)
	return r, tx.events, l.store.sweepReceipts(tx.leases)
}

// moveAside renames the ledger, whatever kind of file it is.
func (l *Ledger) moveAside(suffix string) (string, error) {
	to := l.store.ledgerPath() + ".bad-" + suffix
	err := os.Rename(l.store.ledgerPath(), to)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("move damaged ledger: %w", err)
	}
	return to, nil
}

// readReceipts reads the receipts and keeps the leases whose holders live. Of two on the same device
// the later one counts: it was granted only after the earlier one had been released.
func (l *Ledger) readReceipts(me self) (kept []Lease, dropped []Dropped, err error) {
	entries, err := os.ReadDir(l.store.receiptsDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if err := checkDir(l.store.receiptsDir()); err != nil {
		return nil, nil, err
	}
	var all []Lease
	for _, e := range entries {
		path := filepath.Join(l.store.receiptsDir(), e.Name())
		if !strings.HasSuffix(path, ".json") {
			continue // half written, so never granted
		}
		lease, err := l.store.readReceipt(path)
		if err != nil {
			dropped = append(dropped, Dropped{File: path, Why: err.Error()})
			continue
		}
		all = append(all, lease)
	}
	kept, more := l.keepLive(me, nil, all)
	for i := range more {
		more[i].File = l.store.receiptPath(more[i].Lease.ID)
	}
	return kept, append(dropped, more...), nil
}

// readReceipt reads a lease from a file that must be ours and named after it.
func (s store) readReceipt(path string) (Lease, error) {
	data, err := readOwnFile(path)
	if err != nil {
		return Lease{}, err
	}
	lease, err := s.codec.decodeLease(data)
	if err != nil {
		return Lease{}, fileError(path, err)
	}
	if filepath.Base(path) != lease.ID+".json" {
		return Lease{}, &FileError{path, ErrCorrupt, "it holds lease " + lease.ID}
	}
	return lease, nil
}

// salvageLeases adds leases that a damaged ledger names but that have no receipt, as after an admin
// emptied the directory and edited the file.
func (l *Ledger) salvageLeases(me self, kept []Lease, dropped []Dropped, reason error) ([]Lease, []Dropped) {
	data, err := readOwnFile(l.store.ledgerPath())
	if err != nil || !errors.Is(reason, ErrCorrupt) {
		return kept, dropped
	}
	_, body, _ := strings.Cut(string(data), "\n")
	st, err := l.store.codec.decodeBody([]byte(body))
	if err != nil || l.store.codec.decodeLeases(&st) != nil {
		return kept, dropped
	}
	var lost []Lease
	for _, r := range st.leases {
		isKept := slices.ContainsFunc(kept, func(k Lease) bool { return k.ID == r.id })
		isDropped := slices.ContainsFunc(dropped, func(d Dropped) bool { return d.Lease.ID == r.id })
		if !isKept && !isDropped {
			lost = append(lost, *r.v)
		}
	}
	kept, more := l.keepLive(me, kept, lost)
	for i := range more {
		more[i].File = l.store.ledgerPath()
	}
	return kept, append(dropped, more...)
}

// keepLive adds to kept those of more whose holders live and whose devices no kept lease holds,
// starting with the latest.
func (l *Ledger) keepLive(me self, kept, more []Lease) ([]Lease, []Dropped) {
	var dropped []Dropped
	slices.SortFunc(more, func(a, b Lease) int { return cmp.Or(cmp.Compare(b.Ticks, a.Ticks), b.Since.Compare(a.Since)) })
	for _, lease := range more {
		v := judge(l.world, me, lease)
		rival := slices.IndexFunc(kept, func(k Lease) bool { return slices.ContainsFunc(k.Devices, lease.conflicts) })
		switch {
		case !v.live:
			dropped = append(dropped, Dropped{Lease: lease, Why: v.why})
		case rival >= 0:
			dropped = append(dropped, Dropped{Lease: lease, Why: "its device was leased again later, as " + kept[rival].ID})
		case v.bound != nil:
			kept = append(kept, *v.bound)
		default:
			kept = append(kept, lease)
		}
	}
	slices.SortFunc(kept, func(a, b Lease) int { return a.Since.Compare(b.Since) })
	return kept, dropped
}
