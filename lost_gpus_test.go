package berth

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// TestAcquireLeavesOutLostGPUs: a GPU that has fallen off the bus since the snapshot isn't leased, alone or
// with others, to a request that waits or doesn't. A refused attempt leaves no lease.
func TestAcquireLeavesOutLostGPUs(t *testing.T) {
	for _, tt := range []struct {
		name, request string
		wait          time.Duration
		want          string // the leased GPUs, or the error
	}{
		{"chosen first", "1", 0, "GPU-1"},
		{"waiting", "1", time.Minute, "GPU-1"},
		{"all that are left", "2", 0, "GPU-1 GPU-2"},
		{"more than are left", "3", 0, "node has 2 GPUs (1 more lost), 3 asked"},
		{"named", "device=0", 0, "0 is lost"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			taken := snapshot.Snapshot{}
			for i, header := range []string{strings.Repeat("\xff", 64), "\xde\x10" + strings.Repeat("\x00", 62), "\xde\x10" + strings.Repeat("\x00", 62)} {
				address := "0000:0" + string(rune('1'+i)) + ":00.0"
				device := filepath.Join(dir, "sys/bus/pci/devices", address)
				if err := os.MkdirAll(device, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(device, "config"), []byte(header), 0o644); err != nil {
					t.Fatal(err)
				}
				taken.Inventory.GPUs = append(taken.Inventory.GPUs, gpu.GPU{UUID: "GPU-" + string(rune('0'+i)), Index: i, Minor: i, PCI: address, CPUs: "0"})
			}
			n, err := Open(Config{State: dir + "/run", Data: dir + "/data", Host: HostConfig{Sys: dir + "/sys"}})
			if err != nil {
				t.Fatal(err)
			}
			n.read, n.readAt = &taken, time.Now().Add(time.Hour)
			r, err := request.Parse(tt.request)
			if err != nil {
				t.Fatal(err)
			}
			lease, err := n.Acquire(t.Context(), ledger.Ask{Request: r, Wait: tt.wait, Owner: ledger.Owner{EntryPoint: "test", Container: "c"}})
			var got []string
			for _, d := range lease.Devices {
				got = append(got, d.UUID)
			}
			if err == nil && strings.Join(got, " ") != tt.want || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, %v; want %s", got, err, tt.want)
			}
			held, readErr := n.Leases()
			if readErr != nil || err == nil && (len(held) != 1 || held[0].ID != lease.ID) || err != nil && len(held) != 0 {
				t.Errorf("leases %v, %v", held, readErr)
			}
		})
	}
}
