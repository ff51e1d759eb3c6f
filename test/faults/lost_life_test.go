package faults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rig"
)

// TestRemovalUnderTasks: the package's script refuses the removal while a task runs, though it
// holds no GPU, and also if its monitor was killed or its record is lost. test/packages does
// the same with package managers, and with tasks of containerd.
func TestRemovalUnderTasks(t *testing.T) {
	s := startServer(t, "one-gpu", "v2", "runc")
	script, err := filepath.Abs("../../packaging/scripts/preremove.sh")
	rig.Must(t, err)
	bin := t.TempDir() // the machine's systemd isn't the server's
	rig.Must(t, os.WriteFile(filepath.Join(bin, "systemctl"), []byte("#!/bin/sh\n"), 0o700))
	remove := func() rig.Said {
		cmd := s.Command("sh", script, "remove")
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+filepath.Dir(s.Berth)+":"+os.Getenv("PATH"))
		return s.Run(t, cmd)
	}
	refuses := func(why string) {
		t.Helper()
		if got := remove(); got.Code == 0 || !strings.Contains(got.Err, why) {
			t.Fatalf("the removal: %+v, want %s", got, why)
		}
	}
	start := func() string {
		id := strings.TrimSpace(sh(t, s, s.Berth+" run --runtime runc -d "+rig.ImagePath(t, "busybox")+" sleep 1000"))
		t.Cleanup(func() { sh(t, s, s.Berth+" rm -f "+id+" 2>/dev/null || true") })
		return id
	}

	monitor := func(id string) string {
		return strings.TrimSpace(sh(t, s, `sed -n 's/.*"monitor":{"pid":\([0-9]*\).*/\1/p' /var/lib/berth/tasks/`+id+"/run.json"))
	}

	// A container's program that is called so is no monitor.
	sh(t, s, "cp $(command -v sleep) "+bin+"/berth-monitor")
	other := s.Command("unshare", "--pid", "--fork", "--kill-child", bin+"/berth-monitor", "1000")
	rig.Must(t, other.Start())
	for !strings.Contains(sh(t, s, "ls -l /proc/[0-9]*/exe 2>/dev/null || true"), "-> "+bin+"/berth-monitor") {
		time.Sleep(10 * time.Millisecond)
	}
	if got := remove(); got.Code != 0 {
		t.Errorf("without a task: %+v", got)
	}
	rig.Must(t, other.Process.Kill())
	_ = other.Wait() // it was killed

	id := start()
	refuses("tasks run (" + id[:12])
	sh(t, s, "kill -9 "+monitor(id))
	refuses("tasks run (" + id[:12])
	sh(t, s, s.Berth+" rm -f "+id)

	start()
	sh(t, s, "mv /var/lib/berth/tasks /var/lib/berth/lost")
	refuses("supervises a task whose record is lost")
	sh(t, s, "mv -T /var/lib/berth/lost /var/lib/berth/tasks")
}

// TestLostLife: a task whose run.json is lost or empty while it runs is ended by stop and by rm -f.
func TestLostLife(t *testing.T) {
	t.Parallel()
	n, err := shared.Start("one-gpu", "v2")
	rig.Must(t, err)
	for _, verb := range []string{"stop -t 0", "rm -f"} {
		for _, damage := range []string{"rm", "truncate -s 0"} {
			t.Run(verb+" after "+damage, func(t *testing.T) {
				id := strings.TrimSpace(n.Do(t, n.Berth, "run", "-d", "--gpus", "1", rig.ImagePath(t, "busybox"), "sleep", "1000"))
				n.Do(t, "sh", "-c", damage+" /var/lib/berth/tasks/"+id+"/run.json")
				n.Do(t, n.Berth, append(strings.Fields(verb), id)...)
				if leases := n.Leases(t); len(leases) > 0 {
					t.Errorf("%+v", leases)
				}
				n.Do(t, n.Berth, "rm", "-f", id)
				if out := n.Do(t, n.Berth, "ps", "-aq"); out != "" {
					t.Error(out)
				}
			})
		}
	}
}
