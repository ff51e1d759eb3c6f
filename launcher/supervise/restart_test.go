package supervise

import (
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	var b Backoff
	var got []time.Duration
	for range 11 {
		got = append(got, b.Next(0))
	}
	for lives, want := range map[int]time.Duration{
		0: 100 * time.Millisecond, 1: 200 * time.Millisecond, 5: 3200 * time.Millisecond, 9: 51200 * time.Millisecond, 10: time.Minute,
	} {
		if got[lives] != want {
			t.Errorf("after %d short lives: %v, want %v", lives, got[lives], want)
		}
	}
	if got := b.Next(longLife); got != firstPause {
		t.Errorf("after a long life: %v, want %v", got, firstPause)
	}
}
