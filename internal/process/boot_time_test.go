package process

import (
	"testing"
	"time"
)

func TestHostTicks(t *testing.T) {
	for _, tt := range []struct {
		name   string
		offset time.Duration
		shown  uint64
		want   uint64
		fails  bool
	}{
		{"no time namespace", 0, 22, 22, false},
		{"later boot", -time.Hour, 40, 360040, false},
		{"earlier boot", 1000 * time.Second, 100022, 22, false},
		{"a part of a tick", time.Second + time.Millisecond, 122, 0, true},
		{"older than the namespace's boot", -time.Hour, (1<<64-1)/10_000_000 - 5, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := BootOffset(tt.offset).HostTicks(tt.shown)
			if got != tt.want || (err != nil) != tt.fails {
				t.Errorf("got %d, %v", got, err)
			}
		})
	}
}
