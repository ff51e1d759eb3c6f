package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// useSmallDisk has the rig's data on a disk of few megabytes. fill takes all that is left of it,
// until the file that it returns is removed.
func (r rig) useSmallDisk() (fill func() string) {
	r.t.Helper()
	data := r.base.Data
	if err := os.MkdirAll(data, 0o700); err != nil {
		r.t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", data, "tmpfs", 0, "size=4m,mode=700"); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := unix.Unmount(data, unix.MNT_DETACH); err != nil {
			r.t.Error(err)
		}
	})
	return func() string {
		path := filepath.Join(data, "filling")
		f, err := os.Create(path)
		if err != nil {
			r.t.Fatal(err)
		}
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		if e := f.Close(); !errors.Is(err, unix.ENOSPC) || e != nil {
			r.t.Fatal(err, e)
		}
		return path
	}
}

// On a full disk the end of a task is recorded all the same, and so is its adoption.
func TestFullDisk(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		fill := r.useSmallDisk()
		path, volume := makeFIFO(t)
		d := r.detach(hear+"read x <&3; exit 7", func(j *job) { j.Devices, j.Volumes = "ledger", []string{volume} })
		fill()
		d.killMonitor()
		r.adopt()
		if !d.task().Held {
			t.Error("the task isn't adopted")
		}
		d.killMonitor()
		r.adopt()
		writeWord(t, path, "end")
		expectExit(t, d.exit(), tasks.Exit{Code: 7})
		d.nothing()
		d.remove()
	})
}

// Where even that is impossible, adoption fails at once instead of starting monitor after monitor.
func TestFullDiskWithoutRoom(t *testing.T) {
	r := newAnyRig(t)
	fill := r.useSmallDisk()
	d := r.detach("exec sleep 1000", nil)
	d.killMonitor()
	if err := unix.Kill(d.task().Life.Init.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.until("the task is dead", func() bool { return d.task().State == tasks.Lost })
	if err := os.Remove(r.store().Path(d.id, "spare")); err != nil {
		t.Fatal(err)
	}
	filling := fill()
	got := r.run(r.job(func(j *job) { j.Adopt, j.Lasting.Monitor = true, monitorProgram(t) }))
	if want := "berth: adopt task " + d.id + ": record task " + d.id + ": "; !strings.HasPrefix(got.stderr, want) {
		t.Errorf("%+v, want %q", got, want)
	}
	if err := os.Remove(filling); err != nil {
		t.Fatal(err)
	}
	r.adopt()
	if got := d.exit(); !got.Unknown {
		t.Errorf("%+v", got)
	}
	d.remove()
}

// Monitors that end as soon as they have begun aren't started without end.
func TestAdoptGivesUp(t *testing.T) {
	r := newAnyRig(t)
	d := r.detach("exec sleep 1000", nil)
	d.killMonitor()
	dir := t.TempDir()
	program, begun := filepath.Join(dir, "berth-monitor"), filepath.Join(dir, "begun")
	script := "#!/bin/sh\necho x >>" + begun + "\nfor id; do :; done\necho started $id >&3\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	err := control.Adopt(t.Context(), r.store(), program)
	if tries, e := os.ReadFile(begun); e != nil || string(tries) != "x\nx\nx\n" || !errors.Is(err, control.ErrMonitorEnded) {
		t.Errorf("%d monitors begun, %v; %v", len(tries)/2, e, err)
	}
	// A task without a monitor is removed by force, and no monitor is started for that.
	if err := control.Remove(t.Context(), r.store(), d.task(), true); err != nil {
		t.Error(err)
	}
	d.nothing()
	r.expectNothingLeft()
}
