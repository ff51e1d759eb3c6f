package berth

import (
	"testing"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// TestInUse: a view of devices is in use while one lease holds all of them, and the view of a
// lease as long as that lease exists.
func TestInUse(t *testing.T) {
	dir := t.TempDir()
	n := &Node{ledger: ledger.Open(ledger.Options{Dir: dir + "/run", Events: dir + "/log"})}
	inv := gpu.Inventory{
		GPUs: []gpu.GPU{{UUID: "GPU-a"}, {UUID: "GPU-b", Index: 1}},
		NICs: []gpu.NIC{{Name: "mlx5_0", GUID: "1:2", Ports: []gpu.Port{{Number: 1, State: "ACTIVE"}}}},
	}
	request, err := request.Parse("2,nics=1")
	if err != nil {
		t.Fatal(err)
	}
	lease, err := n.ledger.Acquire(t.Context(), ledger.Ask{Request: request, Inventory: inv, Owner: ledger.Owner{EntryPoint: "test", Container: "c"}})
	if err != nil {
		t.Fatal(err)
	}
	look := func(want bool, names ...string) {
		t.Helper()
		if got := n.inUse(names); got != want {
			t.Errorf("%v: %v", names, got)
		}
	}
	for _, held := range [][]string{{"GPU-a", "GPU-b"}, {"GPU-b"}, {"HCA-1-2"}, {lease.ID}} {
		look(true, held...)
	}
	for _, free := range [][]string{{"GPU-a", "GPU-c"}, {"HCA-1-3"}, {"0123456789ab"}} {
		look(false, free...)
	}
	if err := n.ledger.Release(t.Context(), lease.ID); err != nil {
		t.Fatal(err)
	}
	look(false, "GPU-a")
	look(false, lease.ID)
}
