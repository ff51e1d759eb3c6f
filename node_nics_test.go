package berth

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/snapshot"
)

// A request for NICs is matched with the links as they are now, and with the policy.
func TestInventoryForNICs(t *testing.T) {
	sys := t.TempDir()
	link := func(name, state string) {
		dir := filepath.Join(sys, "class/infiniband", name, "ports/1")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "state"), []byte(state+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link("mlx5_0", "1: DOWN")
	link("mlx5_1", "4: ACTIVE")
	nic := func(name, state string) gpu.NIC {
		return gpu.NIC{Name: name, Ports: []gpu.Port{{Number: 1, State: state}}, Near: []gpu.Path{gpu.PathPIX}}
	}
	taken := snapshot.Snapshot{Inventory: gpu.Inventory{
		GPUs: []gpu.GPU{{UUID: "GPU-0"}}, NICs: []gpu.NIC{nic("mlx5_0", "ACTIVE"), nic("mlx5_1", "INIT")},
	}}
	for _, policy := range []string{"", "shared", "exclusive"} {
		t.Run(policy, func(t *testing.T) {
			n := &Node{
				config: Config{Host: HostConfig{Sys: sys}, Policy: Policy{NICs: policy}},
				read:   &taken, readAt: time.Now().Add(time.Hour),
			}
			r, err := gpu.ParseRequest("1,nics=auto")
			if err != nil {
				t.Fatal(err)
			}
			inv, err := n.inventoryFor(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			got, err := inv.Match(r, nil)
			if err != nil || len(got) != 2 || got[1] != taken.Inventory.NICs[1].Device(policy != "exclusive") {
				t.Fatalf("got %v, %v", got, err)
			}
			if _, err := inv.Match(r, got[1:]); (policy == "exclusive") != errors.Is(err, gpu.ErrBusy) {
				t.Errorf("taken by another: %v", err)
			}
		})
	}
}
