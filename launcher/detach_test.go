package launcher

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// expectExit compares how a task ended, times apart.
func expectExit(t *testing.T, got, want tasks.Exit) {
	t.Helper()
	want.Version = tasks.Version
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(tasks.Exit{}, "Started", "Finished")); diff != "" {
		t.Error(diff)
	}
}

// nothing: no process, no cgroup, no lease and nothing the runtime knows is left of a
// task that has ended, but for what it keeps.
func (d *detached) nothing() {
	d.rig.t.Helper()
	if holders := d.rig.leases(); len(holders) > 0 {
		d.rig.t.Errorf("%q hold leases", holders)
	}
	states, _ := filepath.Glob(filepath.Join(d.rig.base.State, "runtime", "*", "*"))
	if groups := d.rig.listCgroups("/" + d.id); len(states)+len(groups) > 0 {
		d.rig.t.Errorf("left: %q, %q", states, groups)
	}
}

func TestDetached(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		d := r.detach("echo one; echo two >&2; printf thr; printf ee; exit 7", func(j *job) { j.Devices, j.Name = "ledger", "train" })
		expectExit(t, d.end(), tasks.Exit{Code: 7})
		if code := d.cmd.ProcessState.ExitCode(); code != 7 {
			t.Errorf("the monitor ends with %d", code)
		}
		if got := d.log(); !strings.Contains(got, "out: one\n") || !strings.Contains(got, "err: two\n") || !strings.Contains(strings.Replace(got, "err: two\n", "", 1), "out: three") {
			t.Errorf("log %q", got)
		}
		got := d.task()
		if got.State != tasks.Exited || got.Name != "train" || got.Request != "1" || len(got.Devices) != 1 || got.Lease == "" || got.Shared {
			t.Errorf("%+v", got)
		}
		d.nothing()
		d.remove()
	})
}

func TestDetachedWhileItRuns(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		d := r.detach("trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done", func(j *job) { j.Devices = "ledger" })
		d.waitForLine("out: ready")
		got := d.task()
		if got.State != tasks.Running || !got.Held || got.Life.Monitor.PID != d.cmd.Process.Pid || got.Maker != got.Life.Monitor {
			t.Errorf("%+v, life %+v", got, got.Life)
		}
		if holders := r.leases(); len(holders) != 1 || holders[0] != d.id {
			t.Errorf("%q hold leases", holders)
		}
		// Asked to end, as at a shutdown, it ends the task in its own way.
		if err := d.cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		expectExit(t, d.end(), tasks.Exit{Code: 3, Error: "its monitor was asked to end"})
		d.nothing()
		d.remove()
	})
}

// A command may end before the runtime that has started it does.
func TestDetachedEndsAtOnce(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		slow := filepath.Join(t.TempDir(), r.base.Runtime)
		script := "#!/bin/sh\n" + r.base.Runtime + ` "$@"; code=$?; case " $* " in *" start "*) sleep 0.3;; esac; exit $code` + "\n"
		if err := os.WriteFile(slow, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		d := r.detach("exit 5", func(j *job) { j.Runtime = slow })
		expectExit(t, d.end(), tasks.Exit{Code: 5})
		d.remove()
	})
}

func TestDetachedKeepsNothing(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		for _, rw := range []bool{false, true} {
			d := r.detach("exit 5", func(j *job) { j.Devices, j.Lasting.Keep, j.Name, j.ReadWrite = "ledger", false, "train", rw })
			_ = d.cmd.Wait()
			if code := d.cmd.ProcessState.ExitCode(); code != 5 {
				t.Errorf("the monitor ends with %d", code)
			}
			d.nothing()
			r.expectNothingLeft()
			if _, err := os.Stat(filepath.Join(r.base.Image, "bin/busybox")); err != nil {
				t.Error(err)
			}
		}
	})
}

// A detached task that can't start fails with the message and exit code that it has in the
// foreground, and leaves nothing.
func TestDetachedFails(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		// Only the runtime can find that this is impossible.
		impossible := func(j *job) {
			j.Devices, j.Name, j.Volumes = "ledger", "train", []string{t.TempDir() + ":/bin/busybox/below"}
		}
		want := r.sh("true", impossible)
		d := r.launch("true", impossible)
		got, err := bufio.NewReader(d.status).ReadString('\n')
		_ = d.cmd.Wait()
		code, text, ok := control.ParseStatus(got)
		if !ok || code != want.code || !strings.HasPrefix(text, r.base.Runtime+": ") || !strings.Contains(want.stderr, "berth: "+r.base.Runtime+": ") {
			t.Errorf("launch says %q, %v, in the foreground %+v", got, err, want)
		}
		r.expectNothingLeft()
		if holders := r.leases(); len(holders) > 0 {
			t.Errorf("%q hold leases", holders)
		}
	})
}

// A task isn't started when the command that asked for it has ended meanwhile.
func TestDetachedStarterGone(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		d := r.launch("sleep 1000", func(j *job) { j.Devices = "ledger" })
		d.status.Close()
		_ = d.cmd.Wait()
		r.expectNothingLeft()
		if holders := r.leases(); len(holders) > 0 {
			t.Errorf("%q hold leases", holders)
		}
	})
}

func TestNames(t *testing.T) {
	r := newAnyRig(t)
	d := r.detach("read x </never; sleep 1000", func(j *job) { j.Name = "train" })
	got := r.sh("true", func(j *job) { j.Name = "train" })
	if want := fmt.Sprintf("berth: task %s is called train already: the name is taken; berth rm -f train ends that task and makes it free\n", d.id); got.code != 125 || got.stderr != want {
		t.Errorf("%+v, want %q", got, want)
	}
	if err := d.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	d.end()
	d.remove()
	if got := r.sh("hostname", func(j *job) { j.Name = "train" }); got.stdout != "train\n" {
		t.Errorf("%+v", got)
	}
}

// The task's command may open its outputs anew, as shells do with /dev/stdout, also as another user.
func TestDetachedOutputCanBeOpened(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		d := r.detach("echo one >/proc/self/fd/1; echo two >>/proc/self/fd/2", func(j *job) { j.User = "1234:5678" })
		expectExit(t, d.end(), tasks.Exit{})
		if got := d.log(); !strings.Contains(got, "out: one\n") || !strings.Contains(got, "err: two\n") {
			t.Errorf("log %q", got)
		}
		d.remove()
	})
}

func TestTimeout(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		d := r.detach("exec sleep 1000", func(j *job) { j.Lasting.Timeout = 1 })
		expectExit(t, d.end(), tasks.Exit{Code: 143, Signal: 15, Error: "its time of 1ns was over"})
		d.remove()
		if got := r.sh("exec sleep 1000", func(j *job) { j.Lasting.Timeout = 1 }); got != (result{code: 143, stderr: "berth: its time of 1ns was over (--timeout)\n"}) {
			t.Errorf("in the foreground: %+v", got)
		}
	})
}

// What a task writes between two lives stays; it is started again as often as was said.
func TestRestart(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		d := r.detach("echo x >>/n; wc -l </n; exit 4", func(j *job) {
			j.Devices, j.Lasting.Restart = "ledger", tasks.Restart{Policy: "on-failure", Max: 2}
		})
		expectExit(t, d.end(), tasks.Exit{Code: 4, Restarts: 2})
		if got := d.log(); got != "out: 1\nout: 2\nout: 3\n" {
			t.Errorf("log %q", got)
		}
		d.nothing()
		d.remove()
	})
}

// runc creates the file ".pid" beside its pid file exclusively. One that a killed runc has left
// must not keep the task from being started again.
func TestRestartAfterKilledRuntime(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		d := r.detach("echo started; exec sleep 1000", func(j *job) {
			j.Lasting.Restart = tasks.Restart{Policy: "on-failure", Max: 1}
		})
		d.waitForLine("started")
		if err := os.WriteFile(r.store().Path(d.id, "bundle/.pid"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		first := d.task().Life.Init
		if err := unix.Kill(first.PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		r.until("the second life ends or writes", func() bool {
			return d.log() == "out: started\nout: started\n" || d.task().Exit != nil
		})
		if l := d.task().Life; l != nil && l.Init != first {
			_ = unix.Kill(l.Init.PID, unix.SIGKILL) // a life that failed has no process
		}
		expectExit(t, d.end(), tasks.Exit{Code: 137, Signal: 9, Restarts: 1})
		d.remove()
	})
}

// A task that was stopped isn't started again, in a life or between two.
func TestStopped(t *testing.T) {
	r := newAnyRig(t)
	for name, line := range map[string]string{"in a life": "exec sleep 1000", "between two": "exit 1"} {
		t.Run(name, func(t *testing.T) {
			d := r.detach(line, func(j *job) { j.Lasting.Restart = tasks.Restart{Policy: "always"} })
			if name != "in a life" {
				r.until("it restarts", func() bool { l := d.task().Life; return l != nil && l.Restarts > 1 })
			}
			if err := r.store().MarkStopped(d.id); err != nil {
				t.Fatal(err)
			}
			if init := d.task().Life.Init; name == "in a life" {
				if err := unix.Kill(init.PID, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			want := map[string]int{"in a life": 137, "between two": 1}[name]
			if got := d.end(); got.Code != want {
				t.Errorf("%+v", got)
			}
			d.remove()
		})
	}
}

// A task in the foreground can be kept, and how it ended.
func TestForegroundKept(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		got := r.sh("echo x >/left; exit 3", func(j *job) { j.Lasting.Keep, j.Name = true, "train" })
		if got.code != 3 {
			t.Errorf("%+v", got)
		}
		task, err := r.store().Find("train")
		if err != nil {
			t.Fatal(err)
		}
		expectExit(t, *task.Exit, tasks.Exit{Code: 3})
		if left, err := os.ReadFile(r.store().Path(task.ID, "upper/left")); string(left) != "x\n" {
			t.Errorf("%q, %v", left, err)
		}
		if got := r.sh("true", nil); got.code != 0 {
			t.Errorf("%+v", got)
		}
		(&detached{rig: r, id: task.ID}).remove()
	})
}

// A runaway writer takes a fixed share of the disk.
func TestDetachedLogIsBounded(t *testing.T) {
	r := newAnyRig(t)
	d := r.detach("head -c 3000000 /dev/zero; echo; echo last", func(j *job) { j.Lasting.LogLimit = tasks.LogLimit{Size: 64 << 10, Files: 2} })
	expectExit(t, d.end(), tasks.Exit{})
	files, err := filepath.Glob(r.store().Path(d.id, "log*"))
	if err != nil || len(files) != 2 {
		t.Errorf("%q, %v", files, err)
	}
	for _, f := range files {
		if fi, err := os.Stat(f); err != nil || fi.Size() > 64<<10 {
			t.Errorf("%s has %d bytes, %v", f, fi.Size(), err)
		}
	}
	if got := d.log(); !strings.HasSuffix(got, "out: last\n") {
		t.Errorf("the log ends with %q", got[max(0, len(got)-20):])
	}
	d.remove()
}
