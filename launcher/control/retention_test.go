package control

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// TestPruneEnded: of tasks that have ended the old ones go, and those above the number; a rank
// goes with its gang, and what runs, was just lost or can't be read stays.
func TestPruneEnded(t *testing.T) {
	const boot, earlier = "", "an earlier boot"
	dead := tasks.Process{PID: 1 << 29, Start: 1}
	type made struct {
		id      string
		ended   time.Duration // ago; 0 for not at all
		boot    string
		changed time.Duration // ago
		gang    *tasks.Gang
		member  *tasks.Member
	}
	all := []made{
		{id: "aaaaaaaaaaa1", ended: 10 * time.Hour},
		{id: "aaaaaaaaaaa2", ended: 9 * time.Hour, gang: &tasks.Gang{Ranks: []string{"aaaaaaaaaaa3"}, Network: "none"}},
		{id: "aaaaaaaaaaa3", ended: 9*time.Hour + time.Minute, member: &tasks.Member{Gang: "aaaaaaaaaaa2"}},
		{id: "aaaaaaaaaaa4", ended: 3 * time.Hour},
		{id: "aaaaaaaaaaa5", ended: 2 * time.Hour},
		{id: "aaaaaaaaaaa6", ended: time.Minute},
		{id: "bbbbbbbbbbb1", changed: 10 * time.Hour},
		{id: "bbbbbbbbbbb2", boot: earlier, changed: 10 * time.Hour},
		{id: "bbbbbbbbbbb3", boot: earlier, changed: time.Hour},
	}
	for _, tt := range []struct {
		name string
		r    Retention
		gone []string
	}{
		{"everything is kept", Retention{}, nil},
		{"by age", Retention{Age: 150 * time.Minute}, []string{"aaaaaaaaaaa1", "aaaaaaaaaaa2", "aaaaaaaaaaa3", "aaaaaaaaaaa4", "bbbbbbbbbbb2"}},
		{"by number", Retention{Count: 5}, []string{"aaaaaaaaaaa1"}},
		{"by number, a rank", Retention{Count: 4}, []string{"aaaaaaaaaaa1", "aaaaaaaaaaa2", "aaaaaaaaaaa3"}},
		{"by both", Retention{Age: 12 * time.Hour, Count: 1}, []string{"aaaaaaaaaaa1", "aaaaaaaaaaa2", "aaaaaaaaaaa3", "aaaaaaaaaaa4", "aaaaaaaaaaa5"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := tasks.Store{Data: t.TempDir(), State: t.TempDir()}
			now, err := s.BootID()
			must(t, err)
			for _, m := range all {
				must(t, os.MkdirAll(s.Path(m.id, "bundle"), 0o700))
				r := tasks.Record{ID: m.id, Name: m.id, BootID: now, Maker: dead, Detached: true, Gang: m.gang, Member: m.member, Cgroup: "/berth-none/" + m.id}
				if m.boot != boot {
					r.BootID = m.boot
				}
				must(t, errors.Join(s.WriteRecord(r), s.WriteLife(m.id, tasks.Life{Init: dead, Monitor: dead, BootID: r.BootID})))
				if m.ended > 0 {
					must(t, s.WriteExit(m.id, tasks.Exit{Code: 3}))
					then := time.Now().Add(-m.ended)
					must(t, os.Chtimes(s.Path(m.id, "exit.json"), then, then))
				}
				if m.changed > 0 {
					then := time.Now().Add(-m.changed)
					must(t, os.Chtimes(s.Dir(m.id), then, then))
				}
			}
			must(t, PruneEnded(context.Background(), s, tt.r, nil))
			left, err := s.IDs()
			must(t, err)
			for _, m := range all {
				if is, want := slices.Contains(left, m.id), !slices.Contains(tt.gone, m.id); is != want {
					t.Errorf("task %s is there: %v, want %v", m.id, is, want)
				}
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
