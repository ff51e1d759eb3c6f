package launcher

import (
	"bufio"
	"context"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// holdDevice begins a task that has the machine's only device.
func (r rig) holdDevice() *detached {
	return r.detach("trap 'exit 0' TERM; while :; do sleep 0.01; done", func(j *job) { j.Devices = "ledger" })
}

// startQueued begins a task that has to wait for the device, and returns when its id was told.
func (r rig) startQueued(line string, change func(*job)) *detached {
	r.t.Helper()
	d := r.launch(line, func(j *job) {
		j.Devices, j.Wait, j.Name = "ledger", -1, "later"
		if change != nil {
			change(j)
		}
	})
	r.t.Cleanup(func() { d.explain() })
	said, err := bufio.NewReader(d.status).ReadString('\n')
	id, ok := strings.CutPrefix(said, "queued ")
	if d.id = strings.TrimSpace(id); !ok || err != nil {
		r.t.Fatalf("launch says %q, %v; %s", said, err, d.stderr)
	}
	return d
}

// stopAndRemove ends a task, and removes it.
func (d *detached) stopAndRemove() {
	d.rig.t.Helper()
	d.stop()
	d.remove()
}

func (d *detached) stop() {
	d.rig.t.Helper()
	if err := control.Stop(context.Background(), d.rig.store(), d.task(), time.Minute); err != nil {
		d.rig.t.Fatal(err)
	}
	_ = d.cmd.Wait() // its code is the task's
}

func (r rig) waiters() int {
	r.t.Helper()
	v, err := r.ledger().View()
	if err != nil {
		r.t.Fatal(err)
	}
	return len(v.Queue)
}

// The id of a detached task that waits is told at once; the task goes on when the process that asked
// for it is gone, and begins in its turn.
func TestQueued(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		first := r.holdDevice()
		d := r.startQueued("echo hello; exit 7", nil)
		d.status.Close()
		if got := d.task(); got.State != tasks.Waiting || !got.Held || got.Lease != "" {
			t.Errorf("%+v", got)
		}
		if n := r.waiters(); n != 1 {
			t.Errorf("%d wait", n)
		}
		first.stopAndRemove()
		expectExit(t, d.end(), tasks.Exit{Code: 7})
		if got := d.log(); got != "out: hello\n" {
			t.Errorf("log %q", got)
		}
		if got := d.task(); got.Lease == "" || len(got.Devices) != 1 || got.Name != "later" {
			t.Errorf("%+v", got)
		}
		d.nothing()
		d.remove()
	})
}

// A task that waits can be ended in each way in which one that runs can.
func TestEndOfQueued(t *testing.T) {
	r := newAnyRig(t)
	first := r.holdDevice()
	defer first.stopAndRemove()
	for _, tt := range []struct {
		name   string
		change func(*job)
		end    func(d *detached) error
		want   tasks.Exit
	}{
		{"stop", nil, func(d *detached) error {
			return control.Stop(context.Background(), r.store(), d.task(), time.Minute)
		}, tasks.Exit{Code: 143, Error: "interrupted (terminated) before the task ran"}},
		{"kill", nil, func(d *detached) error {
			return control.Signal(context.Background(), r.store(), d.task(), unix.SIGKILL)
		}, tasks.Exit{Code: 143, Error: "interrupted (terminated) before the task ran"}},
		{
			"its time in the queue is over", func(j *job) { j.Wait = time.Millisecond }, func(*detached) error { return nil },
			tasks.Exit{Code: 75},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := r.startQueued("true", tt.change)
			if err := tt.end(d); err != nil {
				t.Fatal(err)
			}
			got := d.end()
			if tt.want.Error == "" && strings.Contains(got.Error, "0 of 1 free") {
				got.Error = ""
			}
			expectExit(t, got, tt.want)
			if n := r.waiters(); n != 0 || len(r.leases()) != 1 {
				t.Errorf("%d wait, and %q hold leases", n, r.leases())
			}
			if code, err := control.Wait(context.Background(), r.store(), d.task()); code != tt.want.Code || err != nil {
				t.Errorf("wait: %d, %v", code, err)
			}
			d.remove()
		})
	}
	t.Run("a signal that isn't for its end", func(t *testing.T) {
		d := r.startQueued("true", nil)
		if err := control.Signal(context.Background(), r.store(), d.task(), unix.SIGUSR1); err == nil || !strings.Contains(err.Error(), "waiting") {
			t.Error(err)
		}
		d.stopAndRemove()
	})
	t.Run("removal", func(t *testing.T) {
		d := r.startQueued("true", nil)
		if err := control.Remove(context.Background(), r.store(), d.task(), false); err == nil {
			t.Error("it was removed while it waits")
		}
		if err := control.Remove(context.Background(), r.store(), d.task(), true); err != nil {
			t.Fatal(err)
		}
		d.expectOnlyHolderLeft()
	})
	t.Run("one that keeps nothing", func(t *testing.T) {
		d := r.startQueued("true", func(j *job) { j.Lasting.Keep = false })
		d.stop()
		d.expectOnlyHolderLeft()
	})
	t.Run("kill -9 of what waits", func(t *testing.T) {
		d := r.startQueued("true", nil)
		if err := d.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = d.cmd.Wait() // it was killed
		r.adopt()
		expectExit(t, d.exit(), tasks.Exit{Code: 255, Error: "its launcher was killed, and how it ended isn't known"})
		if n := r.waiters(); n != 0 || len(r.leases()) != 1 || len(r.listCgroups("/"+d.id)) > 0 {
			t.Errorf("%d wait, %q hold leases, cgroups %q", n, r.leases(), r.listCgroups("/"+d.id))
		}
		d.remove()
		d.expectOnlyHolderLeft()
	})
	t.Run("kill -9 of one that keeps nothing", func(t *testing.T) {
		d := r.startQueued("true", func(j *job) { j.Lasting.Keep = false })
		if err := d.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = d.cmd.Wait() // it was killed
		r.adopt()
		d.expectOnlyHolderLeft()
	})
}

// expectOnlyHolderLeft fails the test if anything is left of a task that waited.
func (d *detached) expectOnlyHolderLeft() {
	d.rig.t.Helper()
	all, err := d.rig.store().List()
	if err != nil || len(all) != 1 || d.rig.waiters() != 0 || len(d.rig.leases()) != 1 || len(d.rig.listCgroups("/"+d.id)) > 0 {
		d.rig.t.Errorf("there are %v, %v; %d wait; cgroups %q", all, err, d.rig.waiters(), d.rig.listCgroups("/"+d.id))
	}
}

// An error after the wait is recorded as the task's end: the command that started it has returned.
func TestQueuedFails(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		for _, keep := range []bool{true, false} {
			first := r.holdDevice()
			d := r.startQueued("true", func(j *job) {
				j.Lasting.Keep, j.Volumes = keep, []string{t.TempDir() + ":/bin/busybox/below"}
			})
			first.stopAndRemove()
			if !keep {
				_ = d.cmd.Wait() // its code is the task's
				r.expectNothingLeft()
				continue
			}
			got := d.end()
			if got.Code != supervise.CodeFailed || !strings.Contains(got.Error, "busybox/below") {
				t.Errorf("%+v", got)
			}
			d.nothing()
			d.remove()
		}
	})
}
