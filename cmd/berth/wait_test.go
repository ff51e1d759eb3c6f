package main

import (
	"testing"
	"time"
)

// Forty requests that wait for each other print a line each, and not one for each change.
func TestWaitLines(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var w waitLines
	for _, tt := range []struct {
		text  string
		after time.Duration
		want  bool
	}{
		{"39 ahead", 0, true},
		{"38 ahead", time.Second, false},
		{"37 ahead", 59 * time.Second, false},
		{"36 ahead", time.Minute, true},
		{"36 ahead", 3 * time.Minute, false},
		{"35 ahead", 3 * time.Minute, true},
	} {
		if got := w.isDue(tt.text, start.Add(tt.after)); got != tt.want {
			t.Errorf("%s after %v: %v", tt.text, tt.after, got)
		}
	}
}
