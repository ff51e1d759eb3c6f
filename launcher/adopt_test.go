package launcher

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// makeFIFO makes a pipe by which a test tells a task to go on.
func makeFIFO(t *testing.T) (path, volume string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "go")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, dir + ":/go"
}

// hear opens the FIFO for reading and writing, so that it doesn't end when a writer closes it.
const hear = "exec 3<>/go/go; "

func writeWord(t *testing.T, path, word string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(word+"\n"), 0); err != nil {
		t.Fatal(err)
	}
}

// The death of a monitor loses neither container, nor lease, nor output, nor the exit
// code, however often.
func TestMonitorKilled(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		path, volume := makeFIFO(t)
		const line = "while read word <&3; do echo $word; test $word = end && exit 42; done"
		d := r.detach(hear+line, func(j *job) { j.Devices, j.Volumes = "ledger", []string{volume} })
		init := d.task().Life.Init
		for n := range 3 {
			d.killMonitor()
			// What is written while no monitor reads is kept.
			writeWord(t, path, fmt.Sprintf("orphan-%d", n))
			if holders := r.leases(); len(holders) != 1 {
				t.Errorf("%q hold leases", holders)
			}
			if got := d.task(); got.State != tasks.Running || !got.Orphan() {
				t.Errorf("without a monitor: %+v, orphan %v", got.Status, got.Orphan())
			}
			r.adopt()
			if got := d.task(); got.Life.Init != init || !got.Held || got.Orphan() {
				t.Errorf("adopted: %+v", got.Life)
			}
			writeWord(t, path, fmt.Sprintf("adopted-%d", n))
			d.waitForLine(fmt.Sprintf("out: adopted-%d", n))
		}
		writeWord(t, path, "end")
		expectExit(t, d.exit(), tasks.Exit{Code: 42})
		want := "out: orphan-0\nout: adopted-0\nout: orphan-1\nout: adopted-1\nout: orphan-2\nout: adopted-2\nout: end\n"
		if got := d.log(); got != want {
			t.Errorf("log %q, want %q", got, want)
		}
		d.nothing()
		d.remove()
	})
}

// The next launch adopts, too. One that ended meanwhile is said to have.
func TestSweepAdopts(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		path, volume := makeFIFO(t)
		d := r.detach(hear+"read x <&3; exit 42", func(j *job) { j.Devices, j.Volumes = "ledger", []string{volume} })
		d.killMonitor()
		r.sweep()
		if !d.task().Held {
			t.Error("the sweep doesn't adopt")
		}
		d.killMonitor()
		init := d.task().Life.Init
		writeWord(t, path, "end")
		r.until("the task is dead", func() bool { return !r.store().Lives(init) })
		r.until("its cgroup is empty", func() bool { return d.task().State == tasks.Lost })
		r.sweep()
		expectExit(t, d.exit(), tasks.Exit{Code: 255, Unknown: true, Error: "its monitor was killed, and how it ended isn't known"})
		if code, err := control.Wait(t.Context(), r.store(), d.task()); code != 255 || !errors.Is(err, control.ErrCodeUnknown) {
			t.Errorf("who waits is told %d, %v", code, err)
		}
		d.nothing()
		d.remove()
	})
}

// Of many commands that adopt a task at once, one does.
func TestAdoptOnce(t *testing.T) {
	r := newAnyRig(t)
	d := r.detach("exec sleep 1000", nil)
	d.killMonitor()
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(r.adopt)
	}
	wg.Wait()
	// The other monitors end.
	r.until("there is one monitor", func() bool { return monitorsOf(t, d.id) == 1 })
	if err := unix.Kill(d.task().Life.Monitor.PID, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := d.exit(); got.Code != 143 {
		t.Errorf("%+v", got)
	}
	d.remove()
}

// monitorsOf counts the monitors of a task.
func monitorsOf(t *testing.T, id string) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if line, err := os.ReadFile(f); err == nil && strings.Contains(string(line), "berth-monitor") && strings.HasSuffix(string(line), id+"\x00") {
			n++
		}
	}
	return n
}

// A task that was adopted is started again with all that it had written, and with its
// lease; when the lease was released meanwhile, it isn't.
func TestAdoptedRestarts(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		path, volume := makeFIFO(t)
		d := r.detach(hear+"echo x >>/n; wc -l </n; read x <&3; exit 4", func(j *job) {
			j.Devices, j.Volumes = "ledger", []string{volume}
			j.Lasting.Restart = tasks.Restart{Policy: "on-failure"}
		})
		d.waitForLine("out: 1")
		d.killMonitor()
		r.adopt()
		writeWord(t, path, "once")
		d.waitForLine("out: 2")
		if holders := r.leases(); len(holders) != 1 {
			t.Errorf("%q hold leases", holders)
		}
		got := d.task()
		if got.Life.Restarts != 1 || got.State != tasks.Running {
			t.Errorf("%+v, %+v", got.Status, got.Life)
		}
		if err := r.ledger().Release(t.Context(), got.Lease); err != nil {
			t.Fatal(err)
		}
		writeWord(t, path, "again")
		end := d.exit()
		if end.Code != 4 || end.Restarts != 1 || !strings.Contains(end.Error, "it isn't started again: its lease was released") {
			t.Errorf("%+v", end)
		}
		d.nothing()
		d.remove()
	})
}

// TestStopLost: a task that is stopped between two lives, without a monitor, isn't restarted by the next monitor.
func TestStopLost(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		path, volume := makeFIFO(t)
		d := r.detach(hear+"read x <&3; exit 42", func(j *job) {
			j.Devices, j.Volumes = "ledger", []string{volume}
			j.Lasting.Restart = tasks.Restart{Policy: "always"}
		})
		d.killMonitor()
		writeWord(t, path, "end")
		r.until("the task is lost", func() bool { return d.task().State == tasks.Lost })
		if err := control.Stop(t.Context(), r.store(), d.task(), -1); err != nil {
			t.Error(err)
		}
		r.sweep()
		if got := d.exit(); got.Restarts != 0 {
			t.Errorf("it was restarted: %+v", got)
		}
		d.nothing()
		d.remove()
	})
}

// A monitor needs none of berth's files, nor the runtime's, to end well: they may be
// upgraded or removed while the task runs.
func TestMonitorOutlivesItsProgram(t *testing.T) {
	r := newAnyRig(t)
	path, volume := makeFIFO(t)
	program := filepath.Join(t.TempDir(), "berth-monitor")
	data, err := os.ReadFile(monitorProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, data, 0o755); err != nil {
		t.Fatal(err)
	}
	d := r.detach(hear+"read x <&3; echo done; exit 9", func(j *job) {
		j.Devices, j.Volumes, j.Lasting.Monitor = "ledger", []string{volume}, program
	})
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	writeWord(t, path, "end")
	expectExit(t, d.end(), tasks.Exit{Code: 9})
	if got := d.log(); got != "out: done\n" {
		t.Errorf("log %q", got)
	}
	d.nothing()
	d.remove()
}

// After a reboot, what was kept is still known, and said to be lost; what wasn't to be
// kept is removed.
func TestReboot(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		d := r.detach("exec sleep 1000", func(j *job) { j.Name = "train" })
		gone := r.detach("exec sleep 1000", func(j *job) { j.Lasting.Keep = false })
		ended := r.detach("exit 3", nil)
		ended.end()
		for _, each := range []*detached{d, gone} {
			l := each.task().Life
			each.killMonitor()
			if err := unix.Kill(l.Init.PID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			r.until("the task is dead", func() bool { return each.task().State == tasks.Lost })
		}
		for _, each := range []*detached{d, gone, ended} {
			rec := each.task().Record
			rec.BootID = "11111111-2222-3333-4444-555555555555"
			if err := r.store().WriteRecord(rec); err != nil {
				t.Fatal(err)
			}
			if l := each.task().Life; l != nil {
				l.BootID = rec.BootID
				if err := r.store().WriteLife(rec.ID, *l); err != nil {
					t.Fatal(err)
				}
			}
			r.ended(rec)
		}
		r.sweep()
		r.adopt()
		all, err := r.store().List()
		if err != nil || len(all) != 2 {
			t.Errorf("%d tasks, %v", len(all), err)
		}
		if got := d.task(); got.Status != (tasks.Status{State: tasks.Lost, Why: "the machine was restarted"}) || got.Orphan() {
			t.Errorf("%+v, orphan %v", got.Status, got.Orphan())
		}
		if got := ended.task(); got.State != tasks.Exited || got.Code != 3 {
			t.Errorf("%+v", got.Status)
		}
		d.remove()
		ended.remove()
	})
}

// ended is what a reboot does to cgroups and the runtime's state.
func (r rig) ended(rec tasks.Record) {
	r.t.Helper()
	if err := os.RemoveAll(filepath.Join(rec.RuntimeRoot, rec.ID)); err != nil {
		r.t.Fatal(err)
	}
	r.until("the cgroups are removed", func() bool {
		for _, dir := range r.listCgroups("/" + rec.ID) {
			removeDirs(dir)
		}
		return len(r.listCgroups("/"+rec.ID)) == 0
	})
}

func removeDirs(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			removeDirs(filepath.Join(dir, e.Name()))
		}
	}
	_ = unix.Rmdir(dir) // tried again
}

// kill -9 at any instant of a detached task's life, of the launcher and of each monitor:
// after adoption and a sweep there is a task that can be ended and removed, or none; and
// no lease, cgroup, name, mount or state of the runtime is ever left.
func TestDetachedKilledAnywhere(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 2
	}
	onAllRigs(t, func(t *testing.T, r rig) {
		for seed := range seeds {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				r := rig{t: t, base: r.base}
				r.killAnywhere(rand.New(rand.NewPCG(seed, 0)))
			})
		}
	})
}

func (r rig) killAnywhere(dice *rand.Rand) {
	r.t.Helper()
	d := r.launch("echo ready; exec sleep 0.0"+fmt.Sprint(dice.IntN(9)), func(j *job) {
		j.Devices, j.Name, j.Lasting.Keep = "ledger", "train", dice.IntN(2) == 0
		if j.Lasting.Keep && dice.IntN(2) == 0 {
			j.Lasting.Restart = tasks.Restart{Policy: "always"}
		}
	})
	after := time.Duration(dice.IntN(250)) * time.Millisecond
	time.Sleep(after)
	d.cmd.Process.Kill()
	_ = d.cmd.Wait()
	line, _ := bufio.NewReader(d.status).ReadString('\n')
	r.t.Logf("killed after %v, having said %q", after, line)
	for range dice.IntN(3) {
		r.adopt()
		time.Sleep(time.Duration(dice.IntN(60)) * time.Millisecond)
		r.killMonitors()
	}
	r.endTasks()
	r.deviceIsFree()
	r.expectNothingLeft()
}

// deviceIsFree checks that the next request gets the device, although the lease of a dead launcher
// is still on record.
func (r rig) deviceIsFree() {
	r.t.Helper()
	request, err := request.Parse("1")
	if err != nil {
		r.t.Fatal(err)
	}
	b := &ledgerDevices{l: r.ledger()}
	lease, err := b.Acquire(r.t.Context(), ledger.Owner{EntryPoint: "run", UID: os.Getuid()}, request, nil)
	if err == nil {
		err = b.Release(r.t.Context(), lease)
	}
	if err != nil {
		r.t.Errorf("the device isn't free: %v", err)
	}
}

// killMonitors kills every monitor of the rig's tasks.
func (r rig) killMonitors() {
	r.t.Helper()
	all, err := r.store().List()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, t := range all {
		if t.Life != nil && t.Held {
			_ = unix.Kill(t.Life.Monitor.PID, unix.SIGKILL) // it may have ended
			r.until("the monitor is dead", func() bool { return !r.store().Lives(t.Life.Monitor) })
		}
	}
}

// endTasks has every task ended and removed, by what every launch and verb does.
func (r rig) endTasks() {
	r.t.Helper()
	r.until("all tasks end and are removed", func() bool {
		r.sweep()
		all, err := r.store().List()
		if err != nil {
			r.t.Fatal(err)
		}
		for _, t := range all {
			switch {
			case t.Exit != nil && t.Remove: // its monitor is about to
			case t.Exit != nil:
				(&detached{rig: r, id: t.ID}).remove()
			case t.Life != nil:
				if err := r.store().MarkStopped(t.ID); err != nil {
					r.t.Log(err)
				}
				if r.store().Lives(t.Life.Init) {
					_ = unix.Kill(t.Life.Init.PID, unix.SIGKILL) // it may have ended
				}
			}
		}
		left, err := r.store().IDs()
		return err == nil && len(left) == 0
	})
}
