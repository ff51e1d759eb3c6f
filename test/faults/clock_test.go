package faults

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rig"
)

// TestClockChange: a time limit counts by the machine's uptime. A date that was changed while a
// task had no monitor neither ends the task nor gives it more time.
func TestClockChange(t *testing.T) {
	s := startServer(t, "dgx-h100", "v2", "runc")
	for _, tt := range []struct {
		name, limit string
		change      time.Duration // of the clock, since the task was started
		ends        bool
	}{
		{"forward", "1h", 48 * time.Hour, false},
		{"back", "1", -48 * time.Hour, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id := strings.TrimSpace(s.Do(t, s.Berth, "run", "-d", "--runtime", s.runtime, "--timeout", tt.limit, rig.ImagePath(t, "busybox"), "sleep", "1000"))
			t.Cleanup(func() { s.Run(t, s.Command(s.Berth, "rm", "-f", id)) })
			life := s.readLife(t, id)
			rig.Must(t, syscall.Kill(life.Monitor.PID, syscall.SIGKILL))
			// The record gets the times that it would have if the clock had jumped since.
			path := s.Path("/var/lib/berth/tasks/" + id + "/run.json")
			var record map[string]any
			text, err := os.ReadFile(path)
			rig.Must(t, err)
			rig.Must(t, json.Unmarshal(text, &record))
			record["started"] = time.Now().Add(-tt.change).UTC()
			text, err = json.Marshal(record)
			rig.Must(t, err)
			rig.Must(t, os.WriteFile(path, text, 0o600))

			rig.WaitUntil(t, "another monitor adopts the task", func() bool {
				s.Do(t, s.Berth, "ps")
				now := s.readLife(t, id).Monitor.PID
				return now != 0 && now != life.Monitor.PID || s.taskState(t, id) == "exited"
			})
			if tt.ends {
				if got := s.Run(t, s.Command("timeout", "60", s.Berth, "wait", id)); got.Code != 0 {
					t.Errorf("berth wait: %+v", got)
				}
				return
			}
			// A limit that is over ends the task before its monitor does anything else.
			if got := s.Run(t, s.Command("timeout", "2", s.Berth, "wait", id)); got.Code != 124 || s.taskState(t, id) != "running" {
				t.Errorf("berth wait: %+v; the task is %s", got, s.taskState(t, id))
			}
		})
	}
}

// life is a task's run.json.
type life struct {
	Init, Monitor struct{ PID int }
}

// readLife returns the zero value for a task without one.
func (s server) readLife(t *testing.T, id string) (l life) {
	t.Helper()
	text, err := os.ReadFile(s.Path("/var/lib/berth/tasks/" + id + "/run.json"))
	if err == nil {
		rig.Must(t, json.Unmarshal(text, &l))
	}
	return l
}

// taskState is a task's state by berth ps, "" without one.
func (s server) taskState(t *testing.T, id string) string {
	t.Helper()
	var list []struct{ State string }
	rig.Must(t, json.Unmarshal([]byte(s.Do(t, s.Berth, "ps", "-a", "--json", "--filter", "id="+id)), &list))
	if len(list) != 1 {
		return ""
	}
	return list[0].State
}
