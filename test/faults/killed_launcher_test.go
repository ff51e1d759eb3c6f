package faults

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestKilledLauncher: a task in the foreground whose berth run was killed goes on, and the next
// berth command starts a monitor for it, which keeps its time limit and gives everything back. The
// monitor isn't in the cgroup of that command: a service's end kills what is in it.
func TestKilledLauncher(t *testing.T) {
	for _, tt := range []struct{ cgroup, runtime string }{{"v1", "crun"}, {"v2", "runc"}} {
		t.Run(tt.cgroup+" "+tt.runtime, func(t *testing.T) {
			t.Parallel() // most of it is the limit's time
			s := startServer(t, "dgx-h100", tt.cgroup, tt.runtime)
			limited := s.killLauncher(t, "--timeout", "8")
			kept := s.killLauncher(t, "--rm=false")
			s.adoptInCgroup(t)
			if s.readLife(t, kept).Monitor.PID == 0 {
				t.Error("no monitor has adopted the task")
			}
			rig.WaitUntil(t, "the limited task's time is over", func() bool { return s.taskState(t, limited) == "" })
			if got := s.taskState(t, kept); got != "running" {
				t.Errorf("the other task is %q", got)
			}
			s.Do(t, s.Berth, "stop", "-t", "0", kept)
			if got := s.taskState(t, kept); got != "exited" {
				t.Errorf("after berth stop it is %q", got)
			}
			s.Do(t, s.Berth, "rm", kept)
			if left := s.Leases(t); len(left) > 0 {
				t.Errorf("leases are left: %+v", left)
			}
		})
	}
}

// killLauncher starts a task in the foreground, kills its berth run, and returns its id.
func (s server) killLauncher(t *testing.T, flags ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "id")
	words := append([]string{"run", "--runtime", s.runtime, "--gpus", "1", "--cidfile", file}, flags...)
	cmd := s.Command(s.Berth, append(words, rig.ImagePath(t, "busybox"), "sleep", "1000")...)
	rig.Must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed
	}()
	id := ""
	rig.WaitUntil(t, "the runtime has written the pid of the task's first process", func() bool {
		text, _ := os.ReadFile(file) // it isn't there yet
		id = string(text)
		pid, err := os.ReadFile(s.Path("/var/lib/berth/tasks/" + id + "/bundle/pid"))
		return id != "" && err == nil && len(pid) > 0
	})
	t.Cleanup(func() { s.Run(t, s.Command(s.Berth, "rm", "-f", id)) })
	rig.Must(t, cmd.Process.Kill())
	<-ended
	return id
}

// adoptInCgroup runs berth ps in a cgroup of its own, and fails if a process is left in there.
func (s server) adoptInCgroup(t *testing.T) {
	t.Helper()
	const script = `g=/sys/fs/cgroup; [ -d $g/pids ] && g=$g/pids; g=$g/berth-caller-$$; mkdir $g; sh -c "echo \$\$ >$g/cgroup.procs; exec $0 ps"; rmdir $g`
	got := s.Run(t, s.Command("sh", "-ec", script, s.Berth))
	if got.Code != 0 {
		t.Errorf("berth ps in a cgroup: %+v", got)
	}
}
