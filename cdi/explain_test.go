package cdi

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/gpu"
)

func TestWhyNodes(t *testing.T) {
	inv := inventory()
	lease := func(uuids ...string) (all []gpu.Device) {
		for _, g := range inv.GPUs {
			for _, d := range append([]gpu.Device{g.Device()}, slicesOf(g)...) {
				if slices.Contains(uuids, d.UUID) {
					all = append(all, d)
				}
			}
		}
		return all
	}
	for _, c := range []struct {
		name   string
		leased []gpu.Device
		wish   Wish
		want   map[string]string
	}{
		{"nothing", nil, usual(), map[string]string{}},
		{"a GPU", lease("GPU-a"), usual(), map[string]string{
			"/dev/nvidia3": "device GPU-a", "/dev/nvidiactl": "comes with every GPU",
			"/dev/nvidia-uvm": "driver capability compute", "/dev/nvidia-uvm-tools": "driver capability compute",
		}},
		{"graphics", lease("GPU-a"), Wish{Capabilities: gpu.Graphics | gpu.Display}, map[string]string{
			"/dev/nvidia3": "device GPU-a", "/dev/nvidiactl": "comes with every GPU",
			"/dev/nvidia-modeset": "driver capability graphics or display",
			"/dev/dri/card1":      "device GPU-a; driver capability graphics or display",
			"/dev/dri/renderD129": "device GPU-a; driver capability graphics or display",
		}},
		{"two slices and a feature", lease("MIG-1", "MIG-2"), Wish{Capabilities: gpu.Utility, Features: []gpu.Feature{"imex=0-1", "gdrcopy"}}, map[string]string{
			"/dev/nvidia0": "device MIG-1, MIG-2", "/dev/nvidiactl": "comes with every GPU",
			"/dev/nvidia-caps/nvidia-cap30": "device MIG-1", "/dev/nvidia-caps/nvidia-cap31": "device MIG-1",
			"/dev/nvidia-caps/nvidia-cap39": "device MIG-2", "/dev/nvidia-caps/nvidia-cap40": "device MIG-2",
			"/dev/nvidia-caps-imex-channels/channel0": "feature imex=0-1", "/dev/nvidia-caps-imex-channels/channel1": "feature imex=0-1",
			"/dev/gdrdrv": "feature gdrcopy",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			why, err := WhyNodes(inv, c.leased, majors(), c.wish)
			must(t, err)
			got := map[string]string{}
			for name, r := range why {
				got[name] = r.String()
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func slicesOf(g gpu.GPU) (all []gpu.Device) {
	for _, s := range g.Slices {
		all = append(all, g.SliceDevice(s))
	}
	return all
}

// TestWhyIsComplete: whatever is wished, each node that comes has a reason, and no
// reason is one of a node that doesn't.
func TestWhyIsComplete(t *testing.T) {
	inv := inventory()
	all := []gpu.Device{inv.GPUs[0].Device(), inv.GPUs[1].SliceDevice(inv.GPUs[1].Slices[0]), inv.GPUs[1].SliceDevice(inv.GPUs[1].Slices[1])}
	rapid.Check(t, func(t *rapid.T) {
		wish := Wish{
			Capabilities: gpu.Capabilities(rapid.IntRange(0, 127).Draw(t, "capabilities")),
			Features:     rapid.SliceOfDistinct(rapid.SampledFrom([]gpu.Feature{"gdrcopy", "imex=0", "imex=0-1", "nvswitch"}), gpu.Feature.Name).Draw(t, "features"),
		}
		leased := rapid.SliceOfNDistinct(rapid.SampledFrom(all), 1, 3, func(d gpu.Device) string { return d.UUID }).Draw(t, "leased")
		e, err := Devices(inv, leased, majors(), wish)
		if err != nil {
			t.Fatal(err)
		}
		why, err := WhyNodes(inv, leased, majors(), wish)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range e.Nodes {
			if why[n.Path].String() == "" {
				t.Errorf("%s has no reason", n.Path)
			}
			delete(why, n.Path)
		}
		for name, r := range why {
			t.Errorf("%s isn't there, for the reason %s", name, r)
		}
	})
}
