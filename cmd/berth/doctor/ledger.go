package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// ledger: it can be read, and whom it names lives.
func (e *exam) ledger(r *result) error {
	node, err := berth.Open(e.Config)
	if err != nil {
		return nil // of cgroups, which is said already
	}
	view, err := node.View()
	switch {
	case errors.Is(err, ledger.ErrCorrupt), errors.Is(err, ledger.ErrOwnership):
		r.fail(e.berth("repair"), "%v", err)
		return nil
	case errors.Is(err, ledger.ErrFuture):
		r.fail("install that version again, or a newer one", "%v", err)
		return nil
	case err != nil:
		return err
	}
	r.ok("%s, %d waiting", count(len(view.Leases), "lease"), len(view.Line))
	for _, l := range view.Leases {
		switch {
		case !l.Live:
			r.warn(e.berth("release "+l.ID), "the holder of lease %s is gone (%s), which the next who asks for GPUs sees as well", l.ID, l.Note)
		case l.Note != "":
			r.warn(e.berth("release "+l.ID)+", or wait until its holder ends", "lease %s: %s", l.ID, l.Note)
		}
	}
	return nil
}

// ledgerLock: who was stopped while it changed the ledger keeps all others from it.
func (e *exam) ledgerLock(r *result) error {
	path := filepath.Join(e.Config.State, "ledger.lock")
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil //nolint:nilerr // nobody has changed it yet, or it is hidden with the ledger
	}
	const most = 16 << 20
	table, err := smallfile.Read(e.host.ProcPath("locks"), most)
	if err != nil {
		return err
	}
	pid := lockedBy(string(table), st.Ino)
	if pid > 0 && stopped(e.host.ProcPath(strconv.Itoa(pid), "stat")) {
		r.fail(fmt.Sprintf("kill -CONT %d", pid), "%s is held by process %d, which is stopped", path, pid)
		return nil
	}
	r.ok("nobody blocks it")
	return nil
}

// lockedBy finds in /proc/locks who holds the lock of a file; 0 if nobody does.
// "1: FLOCK  ADVISORY  WRITE 713 00:1a:5 0 EOF"; a line of who waits has an arrow.
func lockedBy(table string, inode uint64) int {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || !strings.HasSuffix(f[5], ":"+strconv.FormatUint(inode, 10)) {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 {
			return pid
		}
	}
	return 0
}

// stopped reads a process's stat file.
func stopped(path string) bool {
	text, err := smallfile.String(path)
	_, rest, ok := strings.Cut(text, ") ")
	return err == nil && ok && (rest[0] == 'T' || rest[0] == 't')
}

// tasks: each record can be read, and each detached task has its monitor.
func (e *exam) tasks(r *result) error {
	store := tasks.Store{Data: e.Config.Data, State: e.Config.State, Proc: e.Config.Host.Proc}
	ids, err := store.IDs()
	if err != nil {
		return err
	}
	before, running := len(r.findings), 0
	for _, id := range ids {
		t, err := store.Task(id)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it is being made or removed
		case errors.Is(err, fs.ErrPermission):
			return err
		case err != nil:
			r.fail(mendRecord(e, store, id, err), "%v", err)
		case t.Orphan():
			r.warn(e.berth("ps"), "task %s has no monitor any more, and its logs and its end are waited for by nobody until the next verb", t.Name)
		case t.State == tasks.Running:
			running++
		}
	}
	r.fine(before, "%s, %d running", count(len(ids), "task"), running)
	return nil
}

func mendRecord(e *exam, store tasks.Store, id string, err error) string {
	var broken *tasks.BrokenError
	if errors.As(err, &broken) && broken.Hopeless() {
		return e.berth("rm -f " + id)
	}
	return "look at " + store.Dir(id) + ": a newer berth has written it, or it can't be read at all"
}
