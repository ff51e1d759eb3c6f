package process

import (
	"errors"
	"os"
	"path/filepath"
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

// TestNamespaceForChildren: the offset of the namespace that only children will be in isn't taken for the own one.
func TestNamespaceForChildren(t *testing.T) {
	const first, second, third = "time:[4026531834]", "time:[1]", "time:[2]"
	for _, tt := range []struct {
		own, children string
		want          time.Duration
		fails         bool
	}{
		{second, second, 100 * time.Second, false},
		{second, third, 0, true},
		{first, first, 0, false},
		{first, second, 0, false}, // the first namespace has no offset, whatever children get
	} {
		proc := t.TempDir()
		self := filepath.Join(proc, "self")
		if err := errors.Join(
			os.MkdirAll(self+"/ns", 0o755),
			os.WriteFile(self+"/timens_offsets", []byte("monotonic 0 0\nboottime 100 0\n"), 0o600),
			os.Symlink(tt.own, self+"/ns/time"),
			os.Symlink(tt.children, self+"/ns/time_for_children"),
		); err != nil {
			t.Fatal(err)
		}
		got, err := ReadBootOffset(proc)
		if (err != nil) != tt.fails || got != BootOffset(tt.want) {
			t.Errorf("own %s, children in %s: %v, %v", tt.own, tt.children, got, err)
		}
	}
}
