package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/tasks"
)

func (e *exam) checkLedger(r *report) error {
	node, err := berth.Open(e.Config)
	if err != nil {
		return nil //nolint:nilerr // of cgroups, reported by cgroups.version
	}
	if err := node.CheckLedger(); errors.Is(err, berth.ErrLedgerLost) {
		r.fail(r.command("repair"), "%v", err)
		return nil
	}
	view, err := node.View()
	return decideLedger(r, view, err)
}

// unstartedAge is how long containers wait for their start at most when nothing is wrong.
const unstartedAge = time.Minute

// decideLedger reports a ledger that can't be read, and leases whose holder is gone.
func decideLedger(r *report, view ledger.View, err error) error {
	switch {
	case errors.Is(err, ledger.ErrCorrupt), errors.Is(err, ledger.ErrOwnership):
		r.fail(r.command("repair"), "%v", err)
		return nil
	case errors.Is(err, ledger.ErrFuture):
		r.fail("install that version again, or a newer one", "%v", err)
		return nil
	case err != nil:
		return err
	}
	r.ok("%s, %d waiting", countOf(len(view.Leases), "lease"), len(view.Queue))
	for _, l := range view.Leases {
		switch {
		case !l.Live:
			r.warn(r.command("release "+l.ID), "the holder of lease %s is gone (%s); the next request for GPUs finds that as well", l.ID, l.Note)
		case l.Created && time.Since(l.Since) > unstartedAge:
			r.warn(r.command("release --force "+l.ID), "container %s holds lease %s since %s and was never started: the process that should start it is gone", l.Owner.Container, l.ID, l.Since.Format(time.RFC3339))
		case l.Note != "":
			r.warn(r.command("release "+l.ID)+", or wait until its holder ends", "lease %s: %s", l.ID, l.Note)
		}
	}
	return nil
}

// checkLocks reports processes that were stopped or frozen while they held a lock that others
// wait for.
func (e *exam) checkLocks(r *report) error {
	if !exists(filepath.Join(e.Config.State, "ledger.lock")) {
		return nil // nobody has changed the ledger yet, or it is hidden with the ledger
	}
	for _, path := range e.Config.Locks() {
		file, err := os.Stat(path)
		if err != nil {
			continue // nobody has used it yet
		}
		for _, h := range lock.FindHolders(file) {
			switch h.State {
			case lock.Stopped:
				r.fail(fmt.Sprintf("kill -CONT %d", h.PID), "%s is held by %s", path, h)
			case lock.Frozen:
				r.fail(r.command("repair --break-lock"), "%s is held by %s", path, h)
			}
		}
	}
	r.okOtherwise("nobody blocks one")
	return nil
}

// taskFact is a task's record, or why it can't be read.
type taskFact struct {
	id   string
	task tasks.Task
	err  error
	dir  string
}

func (e *exam) checkTaskRecords(r *report) error {
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
		case errors.Is(f.err, fs.ErrNotExist): // it is being made or removed
		case errors.As(f.err, &broken) && broken.IsDamaged():
			r.fail(r.command("rm -f "+f.id), "%v", f.err)
		case f.err != nil:
			r.fail("look at "+f.dir+": a newer berth has written it, or it can't be read at all", "%v", f.err)
		case f.task.Orphan():
			r.warn(r.command("ps"), "task %s has no monitor any more: until the next berth command nobody reads its output or notices its end", f.task.Name)
		case f.task.State == tasks.Running:
			running++
		}
	}
	r.okOtherwise("%s, %d running", countOf(len(all), "task"), running)
}

// checkImageNames reports names of images that can't be read.
func (e *exam) checkImageNames(r *report) error {
	damaged, err := image.Store{Dir: filepath.Join(e.Config.Data, "images")}.Damaged()
	if err != nil {
		return err
	}
	for _, path := range damaged {
		r.warn(r.command("prune")+"; then pull that image again", "%s can't be read, and the image that had the name is gone", path)
	}
	r.okOtherwise("the name of each image can be read")
	return nil
}
