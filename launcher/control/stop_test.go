package control

import (
	"testing"
	"time"

	"github.com/berth-gpu/berth/launcher/tasks"
)

func TestGraceOf(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{0: 10 * time.Second, 1: 1, time.Minute: time.Minute, -time.Second: ForEver} {
		task := tasks.Task{Record: tasks.Record{Grace: tasks.Duration(given)}}
		if got := graceOf(task); got != want {
			t.Errorf("%v: %v, want %v", given, got, want)
		}
		if now := time.Now(); !now.Add(graceOf(task) + killTimeout).After(now) {
			t.Errorf("%v is over before it begins", given)
		}
	}
}
