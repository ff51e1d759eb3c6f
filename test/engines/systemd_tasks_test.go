package engines

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
)

// TestSystemdTasks: under a real systemd, a detached task and its monitor outlive the unit
// that started them, and so does a monitor that a command of a unit has started for a task
// whose own was killed. No reload changes what the task can open. The end of a unit ends a
// task that it runs in the foreground as a signal does.
func TestSystemdTasks(t *testing.T) {
	skipUnlessWanted(t)
	t.Parallel() // on hosts of its own
	for _, on := range []struct{ suite, cgroup string }{{"forky", "v2"}, {"bookworm", "v1"}} {
		t.Run(on.suite+"/"+on.cgroup, func(t *testing.T) {
			h := startWith(t, rack.Options{Cgroup: on.cgroup, Systemd: true}, "-systemd-tasks", on.suite)
			h.do(t, "sh", "-c", "mkdir -p /root/bb/bin /root/bb/nodes && cp $(command -v busybox) /root/bb/bin/ && for name in sh sleep cat; do ln -sf busybox /root/bb/bin/$name; done")
			unit := func(words ...string) string {
				return h.do(t, append([]string{"systemd-run", "--quiet", "--wait", "--collect", "--pipe", "--property=Type=oneshot", "--setenv=PATH=/usr/sbin:/usr/bin"}, words...)...)
			}
			// opened are the GPUs that the task can open, by the host's nodes.
			opened := func(id string) string {
				return strings.TrimSpace(h.do(t, shared.Berth, "exec", id, "sh", "-c",
					`for n in 0 1 2 3 4 5 6 7; do case $(cat /nodes/nvidia$n 2>&1) in *"No such device"*) echo -n $n;; *"not permitted"*) ;; *) echo -n "?$n";; esac; done`))
			}
			monitor := func(id string) int {
				var run struct{ Monitor struct{ PID int } }
				rig.Must(t, json.Unmarshal([]byte(h.do(t, "cat", "/var/lib/berth/tasks/"+id+"/run.json")), &run))
				return run.Monitor.PID
			}
			apart := func(id string) string {
				pid := monitor(id)
				if got := h.do(t, "sh", "-c", fmt.Sprintf("cat /proc/%d/cgroup 2>/dev/null || echo gone", pid)); !strings.Contains(got, "/monitors") {
					return fmt.Sprintf("the monitor, process %d, is in %s", pid, got)
				}
				return ""
			}

			id := strings.TrimSpace(unit(shared.Berth, "run", "-d", "--gpus", "2", "-v", "/dev:/nodes", "/root/bb", "sleep", "100000"))
			first := monitor(id)
			eventually(t, func() string { return apart(id) })
			had := opened(id)
			if len(had) != 2 {
				t.Fatalf("the task opens %q", had)
			}
			for _, words := range [][]string{{"daemon-reload"}, {"daemon-reexec"}, {"daemon-reload"}, {"set-property", "--runtime", "system.slice", "TasksMax=10000"}} {
				h.do(t, append([]string{"systemctl"}, words...)...)
				if got := opened(id); got != had {
					t.Errorf("after systemctl %v it opens %q, before %q", words, got, had)
				}
			}
			if now := monitor(id); now != first {
				t.Errorf("the monitor is process %d, and was %d", now, first)
			}

			h.do(t, "sh", "-c", fmt.Sprint("kill -9 ", first))
			unit(shared.Berth, "ps")
			eventually(t, func() string {
				if monitor(id) == first {
					return "the task has no new monitor"
				}
				return apart(id)
			})
			if got := opened(id); got != had {
				t.Errorf("with a new monitor it opens %q, before %q", got, had)
			}
			unit(shared.Berth, "stop", "-t", "1", id)
			unit(shared.Berth, "rm", id)

			h.do(t, "systemd-run", "--quiet", "--unit", "front", "--setenv=PATH=/usr/sbin:/usr/bin", shared.Berth, "run", "--stop-timeout", "1", "--gpus", "1", "--name", "front", "/root/bb", "sleep", "100000")
			h.until(t, "sh", "-c", shared.Berth+" ps | grep -q front")
			h.do(t, "systemctl", "stop", "front")
			eventually(t, func() string {
				if left := h.live(t); len(left) > 0 {
					return fmt.Sprintf("after the unit's end the leases are %+v", left)
				}
				return ""
			})
		})
	}
}
