package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// TestTimeLimit: ps, leases and inspect say when --timeout ends a task, and inspect has
// durations in words beside the numbers of nanoseconds.
func TestTimeLimit(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	began := time.Now()
	n.berth("run", "-d", "--gpus", "1", "--name", "limited", "--timeout", "10m", "--stop-timeout", "20", image(), "sleep", "1000").ok()
	if got := normalize(n.berth("ps").ok()); !strings.Contains(got, ", ends in AGE") {
		t.Errorf("berth ps: %s", got)
	}
	type limit struct{ Ends time.Time }
	var listed []limit
	var leases struct{ Leases []limit }
	var seen []struct {
		Task struct {
			Grace, Timeout time.Duration
			Durations      struct{ Grace, Timeout string }
			State          limit
		}
	}
	for into, words := range map[any][]string{&listed: {"ps", "--json"}, &leases: {"leases", "--json"}, &seen: {"inspect", "limited"}} {
		check(t, json.Unmarshal([]byte(n.berth(words...).ok()), into))
	}
	for name, got := range map[string]time.Time{"ps": listed[0].Ends, "leases": leases.Leases[0].Ends, "inspect": seen[0].Task.State.Ends} {
		const limit, rounding = 10 * time.Minute, 2 * time.Second
		if got.Before(began.Add(limit-rounding)) || got.After(time.Now().Add(limit+rounding)) {
			t.Errorf("berth %s: the task ends at %v, it was started after %v", name, got, began)
		}
	}
	task := seen[0].Task
	if task.Durations.Grace != "20s" || task.Durations.Timeout != "10m0s" || task.Grace != 20*time.Second || task.Timeout != 10*time.Minute {
		t.Errorf("berth inspect: %+v", task)
	}
	n.berth("rm", "-f", "limited").ok()
	n.checkClean(t)
}
