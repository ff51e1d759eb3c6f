package task

import (
	"testing"
	"time"
)

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
