package node

import (
	"strings"
	"testing"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/snapshot"
)

func TestPrintDiscovered(t *testing.T) {
	s := snapshot.Snapshot{Inventory: gpu.Inventory{
		Hostname: "node", Driver: gpu.Driver{Version: "550.1"},
		GPUs: []gpu.GPU{{Index: 0}, {Index: 1, PCI: "0000:01:00.0", Lost: "fallen off the bus"}},
		NICs: []gpu.NIC{{Name: "mlx5_0"}},
	}}
	for _, c := range []struct {
		name string
		old  bool
		want string
	}{
		{"taken now", false, "node: driver 550.1, 2 GPUs, 1 HCA; snapshot in /s\nGPU 1 (0000:01:00.0) is lost: fallen off the bus\n"},
		{"taken before", true, "node: driver 550.1, 2 GPUs, 1 HCA; /s still fits the machine, nothing had to be done\nGPU 1 (0000:01:00.0) is lost: fallen off the bus\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			if err := printDiscovered(&out, s, "/s", c.old); err != nil || out.String() != c.want {
				t.Errorf("%v, %q, want %q", err, out.String(), c.want)
			}
		})
	}
}
