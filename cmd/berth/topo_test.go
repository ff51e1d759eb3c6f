package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
	if err := got.print(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/topo.txt", b.String())
}

// Where there is nothing to show, the lists of the JSON are empty and not null.
func TestEmptyTopology(t *testing.T) {
	var b strings.Builder
	if err := printJSON(&b, topologyOf(gpu.Inventory{})); err != nil || strings.Contains(b.String(), "null") {
		t.Errorf("%s, %v", b.String(), err)
	}
}
