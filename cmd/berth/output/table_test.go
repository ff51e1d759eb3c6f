package output

import (
	"testing"
	"time"
)

func TestFormatAge(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		ago  time.Duration
		want string
	}{
		{-time.Hour, "0s"}, // the clock was set back
		{0, "0s"},
		{499 * time.Millisecond, "0s"},
		{time.Second, "1s"},
		{59 * time.Second, "59s"},
		{59*time.Second + 600*time.Millisecond, "1m00s"},
		{time.Minute + 5*time.Second, "1m05s"},
		{time.Hour, "1h00m"},
		{47*time.Hour + 59*time.Minute, "47h59m"},
		{48 * time.Hour, "2d"},
		{1000 * time.Hour, "41d"},
	} {
		if got := FormatAge(now.Add(-c.ago), now); got != c.want {
			t.Errorf("age of %v is %s, want %s", c.ago, got, c.want)
		}
	}
	if got := FormatAge(time.Time{}, now); got != "-" {
		t.Errorf("an age that isn't known is %s", got)
	}
}

func TestFormatSize(t *testing.T) {
	for bytes, want := range map[uint64]string{
		0: "-", 1 << 30: "1 GiB", 81559 << 20: "80 GiB", 10 << 30: "10 GiB", 512 << 20: "0.5 GiB", 4864 << 20: "4.8 GiB",
	} {
		if got := FormatMemory(bytes); got != want {
			t.Errorf("size of %d is %s, want %s", bytes, got, want)
		}
	}
}

func TestFormatCount(t *testing.T) {
	for _, c := range []struct {
		n         int
		one, want string
	}{
		{0, "GPU", "0 GPUs"},
		{1, "GPU", "1 GPU"},
		{2, "NVSwitch", "2 NVSwitches"},
		{1, "NVSwitch", "1 NVSwitch"},
		{3, "process", "3 processes"},
		{2, "lease", "2 leases"},
		{2, "box", "2 boxes"},
	} {
		if got := FormatCount(c.n, c.one); got != c.want {
			t.Errorf("plural(%d, %q) is %q, want %q", c.n, c.one, got, c.want)
		}
	}
}
