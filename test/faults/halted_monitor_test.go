package faults

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestHaltedMonitor: commands that end a task or wait for it don't hang when its monitor or launcher
// was stopped by a signal, or is frozen. They name the process, and once that goes on or was killed,
// nothing is left of the task.
func TestHaltedMonitor(t *testing.T) {
	halts := []struct {
		name       string
		halt, wake func(t *testing.T, s server, pid int)
	}{
		{
			"stopped", func(t *testing.T, _ server, pid int) { rig.Must(t, syscall.Kill(pid, syscall.SIGSTOP)) },
			func(t *testing.T, _ server, pid int) { rig.Must(t, syscall.Kill(pid, syscall.SIGCONT)) },
		},
		{
			"stopped, then killed", func(t *testing.T, _ server, pid int) { rig.Must(t, syscall.Kill(pid, syscall.SIGSTOP)) },
			func(t *testing.T, _ server, pid int) { rig.Must(t, syscall.Kill(pid, syscall.SIGKILL)) },
		},
		{
			"frozen", func(t *testing.T, s server, pid int) { s.freeze(t, pid) },
			func(t *testing.T, s server, pid int) { s.thaw(t, pid) },
		},
	}
	for _, cgroup := range []string{"v1", "v2"} {
		s := startServer(t, "dgx-h100", cgroup, "runc")
		for _, tt := range halts {
			t.Run(cgroup+" "+tt.name, func(t *testing.T) {
				for _, words := range [][]string{{"stop"}, {"stop", "-t", "-1"}, {"rm", "-f"}, {"wait"}} {
					s.Do(t, s.Berth, "run", "-d", "--runtime", s.runtime, "--gpus", "1", "--name", "halted", rig.ImagePath(t, "busybox"), "sleep", "1000")
					pid := s.monitorOf(t, "halted")
					tt.halt(t, s, pid)
					if words[0] == "wait" {
						s.Do(t, s.Berth, "kill", "halted")
					}
					got := s.Run(t, s.Command("timeout", append([]string{"60", s.Berth}, append(words, "halted")...)...))
					if want := "berth: task halted has ended, and its monitor is stopped or frozen"; got.Code != 1 || !strings.HasPrefix(got.Err, want) || !strings.Contains(got.Err, fmt.Sprint(pid)) {
						t.Errorf("berth %q: %+v, want %q", words, got, want)
					}
					tt.wake(t, s, pid)
					s.Do(t, s.Berth, "rm", "-f", "halted")
					s.Do(t, s.Berth, "alloc", "8", "--", "true") // all GPUs
				}
			})
		}
	}
}

// freeze freezes a process in a cgroup of its own, beside those of the tasks.
func (s server) freeze(t *testing.T, pid int) {
	t.Helper()
	rig.WaitUntil(t, "the monitor has left the cgroup that it was started in", func() bool {
		return strings.Contains(s.Do(t, "cat", fmt.Sprintf("/proc/%d/cgroup", pid)), "/berth/monitors")
	})
	const v1 = "g=/sys/fs/cgroup/freezer/berth/frozen-%[1]d; mkdir $g; echo %[1]d >$g/cgroup.procs; echo FROZEN >$g/freezer.state"
	const v2 = "g=/sys/fs/cgroup/berth/frozen-%[1]d; mkdir $g; echo %[1]d >$g/cgroup.procs; echo 1 >$g/cgroup.freeze; until grep -q 'frozen 1' $g/cgroup.events; do sleep 0.01; done"
	s.Do(t, "sh", "-c", fmt.Sprintf("if [ -d /sys/fs/cgroup/freezer ]; then "+v1+"; else "+v2+"; fi", pid))
}

// thaw undoes freeze.
func (s server) thaw(t *testing.T, pid int) {
	t.Helper()
	const v1 = "g=/sys/fs/cgroup/freezer/berth/frozen-%[1]d; echo THAWED >$g/freezer.state"
	const v2 = "g=/sys/fs/cgroup/berth/frozen-%[1]d; echo 0 >$g/cgroup.freeze"
	s.Do(t, "sh", "-c", fmt.Sprintf("if [ -d /sys/fs/cgroup/freezer ]; then "+v1+"; else "+v2+"; fi; until rmdir $g; do sleep 0.01; done 2>/dev/null", pid))
}
