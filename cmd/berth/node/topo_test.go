package node

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verbtest"
	"github.com/berth-gpu/berth/gpu"
)

func TestTopology(t *testing.T) {
	inv := inventory()
	inv.GPUs[0].CPUs = "0-27"
	inv.GPUs[1].CPUs = "28-55"
	inv.Links = []gpu.Link{
		{A: 0, B: 1, NVLinks: 12, PCIe: gpu.PathSYS},
		{A: 0, B: 2, PCIe: gpu.PathPXB},
		{A: 0, B: 3, PCIe: gpu.PathSYS},
		{A: 1, B: 2, PCIe: gpu.PathNODE},
	}
	inv.NICs[0].Peers = []gpu.Path{"", gpu.PathPHB}
	inv.NICs[1].Peers = []gpu.Path{gpu.PathPHB, ""}
	inv.NICs[1].Near = inv.NICs[1].Near[:3]
	got := topologyOf(inv)
	want := [][]string{
		{"X", "NV12", "PXB", "SYS", "PIX", "PIX"},
		{"NV12", "X", "NODE", "N/A", "SYS", "PHB"},
		{"PXB", "NODE", "X", "N/A", "SYS", "SYS"},
		{"SYS", "N/A", "N/A", "X", "SYS", "N/A"},
		{"PIX", "SYS", "SYS", "SYS", "X", "PHB"},
		{"PIX", "PHB", "SYS", "N/A", "PHB", "X"},
	}
	if diff := cmp.Diff(want, got.Matrix); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var b strings.Builder
	if err := got.print(&b, false, usualWidth); err != nil {
		t.Fatal(err)
	}
	verbtest.CompareGolden(t, "testdata/topo.txt", b.String())
}

// TestWideTopology: a matrix of many devices fits 80 columns, and --no-trunc shows it in full.
func TestWideTopology(t *testing.T) {
	for _, c := range []struct {
		golden     string
		gpus, nics int
		full       bool
	}{
		{"testdata/topo_8.txt", 8, 10, false},
		{"testdata/topo_16.txt", 16, 10, false},
		{"testdata/topo_full.txt", 8, 10, true},
	} {
		t.Run(c.golden, func(t *testing.T) {
			var b strings.Builder
			if err := topologyOf(wideInventory(c.gpus, c.nics)).print(&b, c.full, usualWidth); err != nil {
				t.Fatal(err)
			}
			verbtest.CompareGolden(t, c.golden, b.String())
			for line := range strings.Lines(b.String()) {
				if n := utf8.RuneCountInString(line) - 1; !c.full && n > usualWidth {
					t.Errorf("a line of %d columns: %s", n, line)
				}
			}
		})
	}
}

// wideInventory has GPUs behind NVSwitches, and NICs, each near one GPU, on two NUMA nodes.
func wideInventory(gpus, nics int) (inv gpu.Inventory) {
	node := func(i, of int) int { return i * 2 / of }
	for i := range gpus {
		inv.GPUs = append(inv.GPUs, gpu.GPU{Index: i, NUMA: node(i, gpus), CPUs: []string{"0-55,112-167", "56-111,168-223"}[node(i, gpus)]})
		for k := range i {
			inv.Links = append(inv.Links, gpu.Link{A: k, B: i, NVLinks: 18, PCIe: gpu.PathNODE})
		}
	}
	pathOf := func(same, sameNode bool) gpu.Path {
		switch {
		case same:
			return gpu.PathPIX
		case sameNode:
			return gpu.PathNODE
		}
		return gpu.PathSYS
	}
	for i := range nics {
		n := gpu.NIC{Name: fmt.Sprintf("mlx5_%d", i), NUMA: node(i, nics)}
		for k := range gpus {
			n.Near = append(n.Near, pathOf(k*nics/gpus == i, node(k, gpus) == n.NUMA))
		}
		for k := range nics {
			n.Peers = append(n.Peers, pathOf(false, node(k, nics) == n.NUMA))
		}
		inv.NICs = append(inv.NICs, n)
	}
	return inv
}

// TestEmptyTopology: without devices the lists of the JSON are empty and not null.
func TestEmptyTopology(t *testing.T) {
	var b strings.Builder
	if err := output.PrintJSON(&b, topologyOf(gpu.Inventory{})); err != nil || strings.Contains(b.String(), "null") {
		t.Errorf("%s, %v", b.String(), err)
	}
}
