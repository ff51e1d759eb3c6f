package output

import (
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// testTime is the time at which statuses are asked for.
var testTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestStatusOfWaitingTask(t *testing.T) {
	waiting := tasks.Task{Record: tasks.Record{Created: testTime.Add(-time.Minute)}, Status: tasks.Status{State: tasks.Waiting}}
	if got := FormatStatus(waiting, testTime); got != "waiting 1m00s" {
		t.Errorf("%q", got)
	}
}

// TestStatusOfEndedTask: the status has the reason of the end where the exit code doesn't show it.
func TestStatusOfEndedTask(t *testing.T) {
	for want, exit := range map[string]tasks.Exit{
		"exited (3) 1m00s ago":                                   {},
		"exited (3) 1m00s ago, out of memory":                    {OOM: true},
		"exited (3) 1m00s ago, code unknown":                     {Unknown: true, Error: "its launcher was killed"},
		"exited (3) 1m00s ago: its time of 2s was over":          {Error: "its time of 2s was over"},
		"exited (3) 1m00s ago: " + strings.Repeat("x", 39) + "…": {Error: strings.Repeat("x", 100)},
	} {
		exit.Finished = testTime.Add(-time.Minute)
		if got := FormatStatus(tasks.Task{Exit: &exit, Status: tasks.Status{State: tasks.Exited, Code: 3}}, testTime); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
