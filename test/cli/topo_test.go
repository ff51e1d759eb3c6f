package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTopoTable: the matrix as users see it.
func TestTopoTable(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "l40s-pcie")
	n.berth("topo").is(0, `      GPU0  GPU1  GPU2  GPU3  NIC0  CPU Affinity  NUMA Affinity
GPU0  X     PHB   SYS   SYS   NODE  0             0
GPU1  PHB   X     SYS   SYS   NODE  0             0
GPU2  SYS   SYS   X     PIX   SYS   1             1
GPU3  SYS   SYS   PIX   X     SYS   1             1
NIC0  NODE  NODE  SYS   SYS   X

Legend:

  X     the device itself
  SYS   from one NUMA node to another
  NODE  within a NUMA node, from one PCIe host bridge to another
  PHB   through a PCIe host bridge, which is mostly the CPU
  PXB   through several PCIe bridges, and no host bridge
  PIX   through one PCIe bridge at most
  NV#   over # NVLinks; behind an NVSwitch, over those that each has to the switch

NIC Legend:

  NIC0: mlx5_0
`, "")
}

// topo is what berth topo --json prints.
type topo struct {
	Devices []struct{ Name, UUID, NIC string }
	Matrix  [][]string
}

// TestTopo: the matrix of a node with all kinds of devices is symmetric, and every GPU has its NIC
// behind its own switch.
func TestTopo(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	var got topo
	if err := json.Unmarshal([]byte(n.berth("topo", "--json").ok()), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Devices) != 18 || len(got.Matrix) != 18 {
		t.Fatalf("%d devices, %d rows", len(got.Devices), len(got.Matrix))
	}
	nics := map[string]int{}
	for i, row := range got.Matrix {
		if len(row) != 18 || row[i] != "X" {
			t.Fatalf("row %d is %v", i, row)
		}
		for k := range row {
			if row[k] != got.Matrix[k][i] || row[k] == "N/A" {
				t.Errorf("%s to %s is %s, the other way %s", got.Devices[i].Name, got.Devices[k].Name, row[k], got.Matrix[k][i])
			}
		}
		nics[got.Devices[i].NIC] = i
	}
	if diff := cmp.Diff([]string{"NV18", "PIX", "SYS"}, []string{got.Matrix[0][7], got.Matrix[0][nics["mlx5_0"]], got.Matrix[0][nics["mlx5_9"]]}); diff != "" {
		t.Error(diff)
	}
}

// TestNICs: NICs are leased with the GPUs that they are near to, to several or to one.
func TestNICs(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	holder := n.start("berth", "alloc", "2,nics=auto", "--", "sh", "-c", "echo $NCCL_IB_HCA; echo $CUDA_VISIBLE_DEVICES; sleep 1000")
	n.waitForLeases(1)
	holder.says("=mlx5_0,mlx5_3\nGPU-")
	holder.says(",GPU-")
	if out := n.berth("leases").ok(); !strings.Contains(out, "0,1,mlx5_0,mlx5_3  2,nics=auto") {
		t.Error(out)
	}
	n.berth("alloc", "nics=mlx5_0", "--", "sh", "-c", "echo $NCCL_IB_HCA $CUDA_VISIBLE_DEVICES").is(0, "=mlx5_0\n", "")
	alone := configured(t, "[policy]\nnics = 'exclusive'")
	busy := n.berth("--config", alone, "alloc", "nics=mlx5_0", "--", "true")
	if want := "request nics=mlx5_0: 1 asked, 0 of 1 free; held: GPU 0,1, NIC mlx5_0,mlx5_3 by alloc sh"; busy.code != 75 || !strings.Contains(busy.stderr, want) {
		t.Errorf("code %d, %s, want %s", busy.code, busy.stderr, want)
	}
	n.berth("--config", alone, "alloc", "device=2,nics=1", "--", "sh", "-c", "echo $NCCL_IB_HCA").is(0, "=mlx5_4\n", "")
	unknown := n.berth("alloc", "1,nics=mlx5_99", "--", "true")
	if want := "request 1,nics=mlx5_99: node has no NIC mlx5_99 (did you mean mlx5_9?)"; unknown.code != 125 || !strings.Contains(unknown.stderr, want) {
		t.Errorf("code %d, %s, want %s", unknown.code, unknown.stderr, want)
	}
	holder.signal(15)
	holder.wait()
}
