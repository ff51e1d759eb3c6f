package launcher

import (
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
)

// freezeItself returns a shell line by which a task with CAP_SYS_ADMIN freezes itself below its cgroup.
func freezeItself(version string) string {
	mount, freeze := "mount -t cgroup -o freezer none", "echo FROZEN >/tmp/c/below/freezer.state"
	if version == "v2" {
		mount, freeze = "mount -t cgroup2 none", "echo 1 >/tmp/c/below/cgroup.freeze"
	}
	return "mkdir -p /tmp/c && /bin/busybox " + mount + " /tmp/c && mkdir /tmp/c/below && echo $$ >/tmp/c/below/cgroup.procs && " +
		"echo ready; " + freeze + "; exec sleep 1000"
}

// A task that has frozen itself ends by its timeout and by signals: on cgroup v1 SIGKILL alone doesn't end it.
func TestFrozenTaskEnds(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		change := func(limit time.Duration) func(*job) {
			return func(j *job) {
				j.Devices, j.CapAdd = "ledger", []string{"SYS_ADMIN"}
				j.Lasting.Timeout, j.Lasting.StopTimeout = limit, 100*time.Millisecond
			}
		}
		const limit = 3 * time.Second // after which the task is frozen
		t.Run("timeout in the foreground", func(t *testing.T) {
			r := r.with(t)
			s := r.startReady(freezeItself(r.base.Cgroups), change(limit))
			s.expectCode(t, 143)
		})
		t.Run("signal in the foreground", func(t *testing.T) {
			r := r.with(t)
			s := r.startReady(freezeItself(r.base.Cgroups), change(0))
			r.untilFrozen()
			s.send(t, unix.SIGTERM)
			s.expectCode(t, 143)
		})
		t.Run("signal after the end of its first process", func(t *testing.T) {
			if r.base.Cgroups == "v2" {
				return // the kernel ends frozen processes with the first one
			}
			r := r.with(t)
			s := r.startReady("mkdir -p /tmp/c && /bin/busybox mount -t cgroup -o freezer none /tmp/c && mkdir /tmp/c/below; "+
				"sleep 1000 & echo $! >/tmp/c/below/cgroup.procs; echo FROZEN >/tmp/c/below/freezer.state; echo ready; exit 0", change(0))
			pid := r.initPID()
			r.until("the first process ends", func() bool {
				_, err := os.Readlink("/proc/" + pid + "/exe")
				return err != nil
			})
			s.send(t, unix.SIGTERM)
			s.expectCode(t, 143)
		})
		t.Run("timeout of a detached task", func(t *testing.T) {
			r := r.with(t)
			d := r.detach(freezeItself(r.base.Cgroups), change(limit))
			if e := d.exit(); e.Code != 143 {
				t.Errorf("%+v", e)
			}
			d.remove()
		})
		r.deviceIsFree()
	})
}

// with returns the rig for a subtest.
func (r rig) with(t *testing.T) rig {
	r.t = t
	return r
}

// expectCode waits at most 20 seconds for the end of the launch.
func (s started) expectCode(t *testing.T, want int) {
	t.Helper()
	stuck := time.AfterFunc(20*time.Second, func() { _ = s.cmd.Process.Kill() }) // it may have ended just now
	defer stuck.Stop()
	if code := exitStatus(t, s.cmd.Wait()); code != want {
		t.Errorf("code %d, want %d; %s", code, want, s.stderr)
	}
}

// untilFrozen waits until the task's first process is frozen.
func (r rig) untilFrozen() {
	r.t.Helper()
	pid, err := strconv.Atoi(r.initPID())
	if err != nil {
		r.t.Fatal(err)
	}
	r.until("the task is frozen", func() bool { return process.FrozenCgroup("/proc", "", pid) != "" })
}
