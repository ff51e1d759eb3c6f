package packages

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// busybox copies busybox's OCI layout to a directory that hosts see, and returns its path there.
func busybox(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("../image/make.sh").CombinedOutput()
	if err == nil {
		out, err = exec.Command("cp", "-rT", "../../.cache/image/busybox", filepath.Join(shared, "busybox")).CombinedOutput()
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(shared, "busybox")
}

// A package can't be removed while tasks run, even if they hold no GPU: also if the record or the
// monitor of a task is lost, and if containerd, which runs tasks for berth, is down.
func TestRemovalUnderTasks(t *testing.T) {
	h := boot(t, "forky", "v2")
	m := dpkg()
	image := busybox(t)
	h.do(m.install(older)...)
	// crun wants the controller io, which a machine that binds it to version 1 lacks on 2.
	h.do("sed", "-i", `s/^runtime = .*/runtime = "runc"/`, "/etc/berth/config.toml")
	sleep := func(words ...string) string {
		return strings.TrimSpace(h.do(append(append([]string{"berth"}, words...), "-d", image, "sleep", "1000")...))
	}

	id := sleep("run")
	checkRefused(h, m, "tasks run ("+id[:12])
	h.do("sh", "-c", "for p in /proc/[0-9]*; do case $(readlink $p/exe) in *berth-monitor*) kill -9 ${p#/proc/};; esac; done")
	checkRefused(h, m, "tasks run ("+id[:12])
	h.do("berth", "rm", "-f", id)

	id = sleep("run")
	h.do("mv", "/var/lib/berth/tasks", "/var/lib/berth/lost")
	checkRefused(h, m, "supervises a task whose record is lost")
	h.do("mv", "/var/lib/berth/lost", "/var/lib/berth/tasks")
	h.do("berth", "rm", "-f", id)

	h.do("systemctl", "start", "containerd")
	id = sleep("--engine", "containerd", "run")
	checkRefused(h, m, "containerd runs tasks of berth")
	h.do("systemctl", "stop", "containerd")
	checkRefused(h, m, "containerd runs tasks of berth")
	h.do("systemctl", "start", "containerd")
	h.do("berth", "--engine", "containerd", "rm", "-f", id)

	// A container's program that is called so is no monitor.
	h.do("sh", "-c", "cp $(command -v sleep) /tmp/berth-monitor && unshare --pid --fork --kill-child /tmp/berth-monitor 1000 >/dev/null 2>&1 &")
	h.until("sh", "-c", "ls -l /proc/[0-9]*/exe 2>/dev/null | grep -q -e '-> /tmp/berth-monitor'")
	h.do(m.remove...)
}
