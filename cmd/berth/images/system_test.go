package images

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// TestDiskUsageByItem: layers that belong to no named image are listed between images and tasks.
func TestDiskUsageByItem(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	u := diskUsage{
		Images: []image.Summary{{Short: "app:1", ID: "sha256:aaaabbbbccccdddd", Created: ago(time.Hour), Size: 2000}},
		Tasks:  []taskSize{{ID: "0123456789ab", Name: "train", Image: "oci:app", Created: ago(time.Minute), Size: tasks.Size{Written: 3000}, status: "up 1m"}},
	}
	const images = "IMAGE  ID            CREATED    SIZE\napp:1  aaaabbbbcccc  1h00m ago  2 kB\n"
	const written = "\nTASK          IMAGE    SIZE  LOGS  CREATED    STATUS  NAME\n0123456789ab  oci:app  3 kB  0 B   1m00s ago  up 1m   train\n"
	const layers = "\nLAYER         UNPACKED   SIZE  TASKS               IMAGE\n111122223333  1h00m ago  5 kB  train,456789abcdef  -\n222233334444  1h00m ago  1 kB  -                   /home/ann/a.sif\n"
	for _, c := range []struct {
		name   string
		layers []image.LayerSummary
		want   string
	}{
		{"none", nil, images + written},
		{"two", []image.LayerSummary{
			{Digest: "sha256:1111222233334444", Size: 5000, Unpacked: ago(time.Hour), Tasks: []string{"0123456789ab", "456789abcdef"}},
			{Digest: "sha256:2222333344445555", Size: 1000, Unpacked: ago(time.Hour), Image: "/home/ann/a.sif"},
		}, images + layers + written},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			u.Layers = c.layers
			if err := u.printAll(&b, now); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, b.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
