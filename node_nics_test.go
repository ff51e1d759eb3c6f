package berth

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// TestInventoryForNICs: the inventory for a request has the present state of the links, and the policy.
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
			r, err := request.Parse("1,nics=auto")
			if err != nil {
				t.Fatal(err)
			}
			inv, _, err := n.inventoryFor(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			got, err := match.Choose(inv, r, nil)
			if err != nil || len(got) != 2 || got[1] != taken.Inventory.NICs[1].Device(policy != "exclusive") {
				t.Fatalf("got %v, %v", got, err)
			}
			if _, err := match.Choose(inv, r, got[1:]); (policy == "exclusive") != errors.Is(err, match.ErrBusy) {
				t.Errorf("taken by another: %v", err)
			}
		})
	}
}

// TestDescribeFarNICs: there is a remark if auto found no near adapter, and none for a request that can't be
// parsed, as of another version of berth.
func TestDescribeFarNICs(t *testing.T) {
	inv := gpu.Inventory{
		GPUs: []gpu.GPU{{UUID: "GPU-0"}},
		NICs: []gpu.NIC{{Name: "mlx5_0", Ports: []gpu.Port{{State: "ACTIVE"}}, Near: []gpu.Path{gpu.PathSYS}}},
	}
	devices := []gpu.Device{inv.GPUs[0].Device(), inv.NICs[0].Device(true)}
	for request, want := range map[string]bool{"1,nics=auto": true, "1,nics=1": false, "1,nics=next!": false} {
		if got := describeFarNICs(inv, &ledger.Lease{Request: request, Devices: devices}); (got != "") != want {
			t.Errorf("%s: %q", request, got)
		}
	}
}
