package engines

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// The pid of a dead holder proves nothing after another process got it, which happens soon on a
// host with few pids (kernel.pid_max).
func TestReusedPids(t *testing.T) {
	skipUnlessWanted(t)
	t.Parallel() // on a host of its own
	d := &dockerHost{server: server{startFor(t, "-pids", "forky", "v2")}, runtime: "berth", request: annotationOf}
	d.install(t)
	var name unix.Utsname
	rig.Must(t, unix.Uname(&name))
	var major, minor int
	if n, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); n != 2 || major*100+minor < 614 {
		t.Skipf("before Linux 6.14 kernel.pid_max is the machine's, and not a pid namespace's: %v", err)
	}
	d.do(t, "sh", "-c", "echo 800 >/proc/sys/kernel/pid_max")
	if got := strings.TrimSpace(d.do(t, "cat", "/proc/sys/kernel/pid_max")); got != "800" {
		t.Fatalf("kernel.pid_max is %s", got)
	}
	d.do(t, "sh", "-c", "i=0; while [ $i -lt 300 ]; do (:); i=$((i + 1)); done") // the kernel doesn't use lower ones again
	id := d.startContainer(t, "3")
	granted := d.startAlloc(t, 5)
	granted(t)
	holders := d.holders(t)
	if len(holders) != 2 {
		t.Fatalf("processes that hold leases: %v", holders)
	}
	shim := d.shim(t, id)
	d.down(t)
	d.kill(t, shim)               // the container isn't deleted
	for _, pid := range holders { // those that are alive: the engine may have ended some
		d.do(t, "sh", "-c", "kill -9 $0 2>/dev/null || ! kill -0 $0 2>/dev/null", pid)
	}
	for _, pid := range holders {
		d.reuse(t, pid)
	}
	d.waitForHeld(t, map[string]int{})
	d.takeGPUs(t, 8)()
	if left := d.leases(t); len(left) > 0 {
		t.Errorf("leases are left: %+v", left)
	}
}

// holders returns the processes that prove that leases' holders are alive.
func (s server) holders(t *testing.T) (pids []string) {
	t.Helper()
	var view struct {
		Leases []struct {
			Owner struct{ Process struct{ PID int } }
		}
	}
	rig.Must(t, json.Unmarshal([]byte(s.do(t, shared.Berth, "leases", "--json")), &view))
	for _, l := range view.Leases {
		pids = append(pids, strconv.Itoa(l.Owner.Process.PID))
	}
	return pids
}

// reuse starts a process of the host that has this pid, until the test ends.
func (s server) reuse(t *testing.T, pid string) {
	t.Helper()
	cmd := s.command("sh", "-c", `while :; do sleep 1000 & [ $! != "$0" ] || break; kill -9 $!; wait $!; done 2>/dev/null; echo has it; wait`, pid)
	out, err := cmd.StdoutPipe()
	rig.Must(t, err)
	rig.Must(t, cmd.Start())
	t.Cleanup(func() {
		s.kill(t, pid)
		_ = cmd.Wait() // one of its processes was killed
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "has it\n" {
		t.Fatalf("process %s: %q, %v", pid, line, err)
	}
}
