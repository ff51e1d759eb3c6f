package faults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	refuses := func(why string) {
		t.Helper()
		cmd := s.Command("sh", script, "remove")
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+filepath.Dir(s.Berth)+":"+os.Getenv("PATH"))
		if got := s.Run(t, cmd); got.Code == 0 || !strings.Contains(got.Err, why) {
			t.Fatalf("the removal: %+v, want %s", got, why)
		}
	}
	start := func() string {
		id := strings.TrimSpace(sh(t, s, s.Berth+" run --runtime runc -d "+imagePath(t, "busybox")+" sleep 1000"))
		t.Cleanup(func() { sh(t, s, s.Berth+" rm -f "+id+" 2>/dev/null || true") })
		return id
	}

	monitor := func(id string) string {
		return strings.TrimSpace(sh(t, s, `sed -n 's/.*"monitor":{"pid":\([0-9]*\).*/\1/p' /var/lib/berth/tasks/`+id+"/run.json"))
	}

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
