package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/tasks"
)

func (e *examination) checkLedger(r *report) error {
	node, err := berth.Open(e.Config)
	if err != nil {
		return nil //nolint:nilerr // of cgroups, reported by cgroups.version
	}
	view, err := node.View()
	if e.User != "" && errors.Is(err, fs.ErrPermission) {
		return errRootOnly
	}
	return decideLedger(r, view, err)
}

// unstartedAge is the age from which a created container that wasn't started is reported.
const unstartedAge = time.Minute

// decideLedger reports a ledger that is lost or can't be read, and leases whose holder is dead.
func decideLedger(r *report, view ledger.View, err error) error {
	switch {
	case errors.Is(err, ledger.ErrCorrupt), errors.Is(err, ledger.ErrOwnership), errors.Is(err, berth.ErrLedgerLost):
		r.fail(r.command("repair"), "%v", err)
		return nil
	case errors.Is(err, ledger.ErrFuture):
		r.fail("install that version again, or a newer one", "%v", err)
		return nil
	case err != nil:
		return err
	}
	r.ok("%s, %d waiting", output.FormatCount(len(view.Leases), "lease"), len(view.Queue))
	for _, l := range view.Leases {
		switch {
		case !l.Live:
			r.warn(r.command("release "+l.ID), "the holder of lease %s is dead (%s); the next request for GPUs also releases it", l.ID, l.Note)
		case l.Created && time.Since(l.Since) > unstartedAge:
			r.warn(r.command("release --force "+l.ID), "container %s holds lease %s since %s and was never started: the process that should start it has ended", l.Owner.Container, l.ID, l.Since.Format(time.RFC3339))
		case l.Note != "":
			r.warn(r.command("release "+l.ID)+", or wait until its holder ends", "lease %s: %s", l.ID, l.Note)
		}
	}
	return nil
}

// checkLocks reports processes that are stopped or frozen while they hold one of berth's
// locks.
func (e *examination) checkLocks(r *report) error {
	if !exists(filepath.Join(e.Config.State, "ledger.lock")) {
		return nil // there is no ledger yet, or this user can't read its directory
	}
	var paths []string
	var fds []int
	for _, path := range e.Config.Locks() {
		file, err := os.OpenFile(path, unix.O_PATH, 0)
		if err != nil {
			continue // it isn't used yet
		}
		defer file.Close()
		paths, fds = append(paths, path), append(fds, int(file.Fd()))
	}
	for i, holders := range lock.FindHolders(fds...) {
		for _, h := range holders {
			switch h.State {
			case lock.Stopped:
				r.fail(fmt.Sprintf("kill -CONT %d", h.PID), "%s is held by %s", paths[i], h)
			case lock.Frozen:
				r.fail(r.command("repair --break-lock"), "%s is held by %s", paths[i], h)
			}
		}
	}
	r.okUnlessReported("nobody blocks one")
	return nil
}

// taskFact is a task's record, or why it can't be read.
type taskFact struct {
	id   string
	task tasks.Task
	err  error
	dir  string
}

func (e *examination) checkTaskRecords(r *report) error {
	store := tasks.Store{Data: e.Config.Data, State: e.Config.State, Proc: e.Config.Host.Proc}
	ids, err := store.IDs()
	if err != nil {
		return err
	}
	var all []taskFact
	for _, id := range ids {
		t, err := store.Task(id)
		if errors.Is(err, fs.ErrPermission) {
			return err
		}
		all = append(all, taskFact{id, t, err, store.Dir(id)})
	}
	decideTasks(r, all)
	return nil
}

// decideTasks reports records that can't be read and detached tasks without a monitor.
func decideTasks(r *report, all []taskFact) {
	running := 0
	for _, f := range all {
		var broken *tasks.BrokenError
		switch {
		case errors.Is(f.err, fs.ErrNotExist): // it is being created or removed
		case errors.As(f.err, &broken) && broken.IsDamaged():
			r.fail(r.command("rm -f "+f.id), "%v", f.err)
		case f.err != nil:
			r.fail("look at "+f.dir+": a newer berth has written it, or it is damaged", "%v", f.err)
		case f.task.Orphan():
			r.warn(r.command("ps"), "task %s has no monitor: until the next berth command its output isn't logged and its end isn't recorded", f.task.Name)
		case f.task.State == tasks.Running:
			running++
		}
	}
	r.okUnlessReported("%s, %d running", output.FormatCount(len(all), "task"), running)
}

// checkImageNames reports names of images that can't be read.
func (e *examination) checkImageNames(r *report) error {
	damaged, err := image.StoreIn(e.Config.Data).Damaged()
	if err != nil {
		return err
	}
	for _, path := range damaged {
		r.warn(r.command("prune")+"; then pull that image again", "%s can't be read, and its image is lost", path)
	}
	r.okUnlessReported("the name of each image can be read")
	return nil
}
