package faults

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rig"
)

// TestIdleFollowerSleeps: berth logs -f of a task that writes nothing wakes a few times a
// second, shows at once what comes, and ends with the task.
func TestIdleFollowerSleeps(t *testing.T) {
	s := startServer(t, "dgx-h100", "v2", "runc")
	fifo := filepath.Join(t.TempDir(), "fifo")
	s.Do(t, "mkfifo", fifo)
	id := strings.TrimSpace(s.Do(t, s.Berth, "run", "-d", "--runtime", s.runtime, "-v", fifo+":/fifo",
		rig.ImagePath(t, "busybox"), "sh", "-c", "echo first; cat /fifo; exit 3"))
	t.Cleanup(func() { s.Run(t, s.Command(s.Berth, "rm", "-f", id)) })
	cmd := s.Command(s.Berth, "logs", "-f", id)
	out, err := cmd.StdoutPipe()
	rig.Must(t, err)
	rig.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may have ended
	lines := bufio.NewScanner(out)
	expectLine := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("%q, %v, want %q", lines.Text(), lines.Err(), want)
		}
	}
	expectLine("first")
	const seconds = 3
	before := countWakeups(t, cmd.Process.Pid)
	time.Sleep(seconds * time.Second) // the measure is over this time
	if woken := countWakeups(t, cmd.Process.Pid) - before; woken > 40*seconds {
		t.Errorf("an idle follower woke %d times in %d seconds", woken, seconds)
	}
	rig.Must(t, os.WriteFile(s.Path(fifo), []byte("second\n"), 0))
	expectLine("second")
	if lines.Scan() {
		t.Errorf("one more line: %q", lines.Text())
	}
	rig.Must(t, cmd.Wait())
}

// countWakeups returns how often the threads of a process have waited for something.
func countWakeups(t *testing.T, pid int) (sum int) {
	t.Helper()
	all, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/status")
	rig.Must(t, err)
	for _, path := range all {
		data, err := os.ReadFile(path)
		rig.Must(t, err)
		for line := range strings.Lines(string(data)) {
			if value, ok := strings.CutPrefix(line, "voluntary_ctxt_switches:"); ok {
				n, err := strconv.Atoi(strings.TrimSpace(value))
				rig.Must(t, err)
				sum += n
			}
		}
	}
	return sum
}
