package task

import (
	"testing"
	"time"

	"github.com/berth-gpu/berth/cmd/berth/verbtest"
)

// TestTail: docker and podman take a negative number for all lines.
func TestTail(t *testing.T) {
	for typed, want := range map[string]int{"all": -1, "-1": -1, "-5": -1, "0": 0, "7": 7} {
		c, err := verbtest.ParseFlags(t, LogsCommand().Flags, "--tail="+typed)
		if err != nil {
			t.Fatal(err)
		}
		if q, err := parseQuery(c, time.Time{}); err != nil || q.Tail != want {
			t.Errorf("--tail %s is %d, %v; want %d", typed, q.Tail, err, want)
		}
	}
}

func TestParseTime(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.FixedZone("here", 3600))
	for text, want := range map[string]time.Time{
		"10m": now.Add(-10 * time.Minute), "2026-01-02": time.Date(2026, 1, 2, 0, 0, 0, 0, now.Location()),
		"2026-01-02T03:04:05Z": time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "2026-01-02T03:04:05.5": time.Date(2026, 1, 2, 3, 4, 5, 5e8, now.Location()),
		"2026-01-02T03:04": time.Date(2026, 1, 2, 3, 4, 0, 0, now.Location()), "1767323045": time.Unix(1767323045, 0), "1.5": time.Unix(1, 5e8), "": {},
	} {
		if got, err := parseTime(text, now); !got.Equal(want) || err != nil {
			t.Errorf("%q is %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"yesterday", "2026-13-01", "-5", "10"} {
		if got, err := parseTime(text, now); err == nil && text != "10" {
			t.Errorf("%q is %v", text, got)
		}
	}
}
