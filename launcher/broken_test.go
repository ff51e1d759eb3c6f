package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// truncateRecord leaves of a task's record what a power failure may.
func (d *detached) truncateRecord() {
	d.rig.t.Helper()
	if err := os.WriteFile(d.rig.store().Path(d.id, "task.json"), nil, 0o600); err != nil {
		d.rig.t.Fatal(err)
	}
}

// brokenError returns the error that the damaged record causes.
func (d *detached) brokenError() *tasks.BrokenError {
	d.rig.t.Helper()
	_, err := d.rig.store().Task(d.id)
	var broken *tasks.BrokenError
	if !errors.As(err, &broken) {
		d.rig.t.Fatalf("it isn't broken: %v", err)
	}
	return broken
}

// A task whose record can't be read stays while it runs; what is left of one that has
// ended goes with the next launch.
func TestSweepRemovesBroken(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		d := r.detach("exec sleep 1000", func(j *job) { j.Devices, j.Name = "ledger", "train" })
		init := d.task().Life.Init
		d.killMonitor()
		d.truncateRecord()
		r.sweep()
		if !r.store().Lives(init) {
			t.Error("it was ended")
		}
		d.brokenError()
		if err := unix.Kill(init.PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		r.until("the task is dead", func() bool { return !r.store().Lives(init) })
		r.until("it is removed", func() bool {
			r.sweep()
			_, err := os.Stat(r.store().Dir(d.id))
			return errors.Is(err, os.ErrNotExist)
		})
		r.deviceIsFree()
		r.expectNothingLeft()
		if left, err := filepath.Glob(filepath.Join(r.base.Data, "names", "*")); len(left) > 0 || err != nil {
			t.Errorf("names %q, %v", left, err)
		}
	})
}

// A broken task is removed, whichever files its directory has.
func TestRemoveBrokenHalf(t *testing.T) {
	r := newAnyRig(t)
	d := &detached{rig: r, id: "0123456789ab"}
	if err := os.MkdirAll(r.store().Dir(d.id), 0o700); err != nil {
		t.Fatal(err)
	}
	d.truncateRecord()
	if err := control.RemoveBroken(t.Context(), r.store(), d.brokenError()); err != nil {
		t.Fatal(err)
	}
	r.expectNothingLeft()
}

// By force it is removed at once, with or without a monitor.
func TestRemoveBroken(t *testing.T) {
	r := newAnyRig(t)
	for name, orphan := range map[string]bool{"watched over": false, "without a monitor": true} {
		t.Run(name, func(t *testing.T) {
			r := rig{t: t, base: r.base}
			d := r.detach("exec sleep 1000", func(j *job) { j.Devices, j.Name = "ledger", "train" })
			if orphan {
				d.killMonitor()
			}
			d.truncateRecord()
			if !orphan {
				go func() { _ = d.cmd.Wait() }() // its code is the task's
			}
			if err := control.RemoveBroken(t.Context(), r.store(), d.brokenError()); err != nil {
				t.Fatal(err)
			}
			r.deviceIsFree()
			r.expectNothingLeft()
		})
	}
}
