package output

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// FormatSize prints a size as docker does, in powers of ten.
func FormatSize(n int64) string {
	const kB, MB, GB = 1000, 1000 * 1000, 1000 * 1000 * 1000
	switch f := float64(n); {
	case n < kB:
		return strconv.FormatInt(n, 10) + " B"
	case n < MB:
		return fmt.Sprintf("%.0f kB", f/kB)
	case n < 10*MB:
		return fmt.Sprintf("%.1f MB", f/MB)
	case n < GB:
		return fmt.Sprintf("%.0f MB", f/MB)
	}
	return fmt.Sprintf("%.2f GB", float64(n)/GB)
}

// FormatMemory prints bytes rounded as vendors do: an "80 GiB" card reports a little less.
func FormatMemory(bytes uint64) string {
	gib := float64(bytes) / (1 << 30)
	switch {
	case bytes == 0:
		return "-"
	case gib < 10:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", gib), ".0") + " GiB"
	}
	return fmt.Sprintf("%.0f GiB", gib)
}

// ShortenDigest returns the id of an image: the beginning of a digest without its algorithm; "-" for none.
func ShortenDigest(digest string) string {
	if _, hex, ok := strings.Cut(digest, ":"); ok {
		digest = hex
	}
	return cmp.Or(abbreviateID(digest), "-")
}

func abbreviateID(id string) string {
	if len(id) > 12 {
		return id[:12]
	}
	return id
}

// FormatTaskSize prints the size of the files that a task has written, marked if not all could be counted.
func FormatTaskSize(s tasks.Size) string {
	if s.Partial {
		return "over " + FormatSize(s.Written)
	}
	return FormatSize(s.Written)
}

// FormatCount prints a number and a noun, in the plural unless the number is 1.
func FormatCount(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	if strings.HasSuffix(one, "s") || strings.HasSuffix(one, "x") || strings.HasSuffix(one, "ch") {
		one += "e"
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// FormatAge prints the time since an event in its two largest units, "-" if that is the zero time.
func FormatAge(since, now time.Time) string {
	if since.IsZero() {
		return "-"
	}
	d := now.Sub(since).Round(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// TimeOrNil returns nil for the zero time, so that JSON leaves it out.
func TimeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// TimeFormat is docker's format of the time at which a container was created.
const TimeFormat = "2006-01-02 15:04:05 -0700 MST"
