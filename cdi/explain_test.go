package cdi

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

func TestNodeReasons(t *testing.T) {
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
		name      string
		leased    []gpu.Device
		selection Selection
		want      map[string]string
	}{
		{"nothing", nil, usualSelection(), map[string]string{}},
		{"a GPU", lease("GPU-a"), usualSelection(), map[string]string{
			"/dev/nvidia3": "device GPU-a", "/dev/nvidiactl": "comes with every GPU",
			"/dev/nvidia-uvm": "driver capability compute", "/dev/nvidia-uvm-tools": "driver capability compute",
		}},
		{"graphics", lease("GPU-a"), Selection{Capabilities: gpu.Graphics | gpu.Display}, map[string]string{
			"/dev/nvidia3": "device GPU-a", "/dev/nvidiactl": "comes with every GPU",
			"/dev/nvidia-modeset": "driver capability graphics or display",
			"/dev/dri/card1":      "device GPU-a; driver capability graphics or display",
			"/dev/dri/renderD129": "device GPU-a; driver capability graphics or display",
		}},
		{"two slices and a feature", lease("MIG-1", "MIG-2"), Selection{Capabilities: gpu.Utility, Features: []gpu.Feature{"imex=0-1", "gdrcopy"}}, map[string]string{
			"/dev/nvidia0": "device MIG-1, device MIG-2", "/dev/nvidiactl": "comes with every GPU",
			"/dev/nvidia-caps/nvidia-cap30": "device MIG-1", "/dev/nvidia-caps/nvidia-cap31": "device MIG-1",
			"/dev/nvidia-caps/nvidia-cap39": "device MIG-2", "/dev/nvidia-caps/nvidia-cap40": "device MIG-2",
			"/dev/nvidia-caps-imex-channels/channel0": "feature imex=0-1", "/dev/nvidia-caps-imex-channels/channel1": "feature imex=0-1",
			"/dev/gdrdrv": "feature gdrcopy",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := Devices(inv, c.leased, majors(), c.selection)
			must(t, err)
			checkReasons(t, e)
			got := map[string]string{}
			for _, n := range e.Nodes {
				got[n.Path] = e.Why("device", n.Path)
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

// TestNodeReasonsAreComplete: for any selection, each added node has a reason, and each reason has
// an added node.
func TestNodeReasonsAreComplete(t *testing.T) {
	inv := inventory()
	all := []gpu.Device{inv.GPUs[0].Device(), inv.GPUs[1].SliceDevice(inv.GPUs[1].Slices[0]), inv.GPUs[1].SliceDevice(inv.GPUs[1].Slices[1])}
	rapid.Check(t, func(t *rapid.T) {
		selection := Selection{
			Capabilities: gpu.Capabilities(rapid.IntRange(0, 127).Draw(t, "capabilities")),
			Features:     rapid.SliceOfDistinct(rapid.SampledFrom([]gpu.Feature{"gdrcopy", "imex=0", "imex=0-1", "nvswitch"}), gpu.Feature.Name).Draw(t, "features"),
		}
		leased := rapid.SliceOfNDistinct(rapid.SampledFrom(all), 1, 3, func(d gpu.Device) string { return d.UUID }).Draw(t, "leased")
		e, err := Devices(inv, leased, majors(), selection)
		if err != nil {
			t.Fatal(err)
		}
		checkReasons(t, e)
	})
}

// checkReasons checks that everything that the edits add has a reason, and that each reason belongs to
// something added.
func checkReasons(t interface{ Errorf(string, ...any) }, e edits.Edits) {
	var added [][2]string
	for _, n := range e.Nodes {
		added = append(added, [2]string{"device", n.Path})
	}
	for _, m := range e.Mounts {
		added = append(added, [2]string{"mount", m.Destination})
	}
	for name := range e.Env {
		added = append(added, [2]string{"variable", name})
	}
	for _, l := range e.Rlimits {
		added = append(added, [2]string{"limit", l.Type})
	}
	for _, p := range e.ReadonlyPaths {
		added = append(added, [2]string{"mask", p})
	}
	for _, a := range added {
		if e.Why(a[0], a[1]) == "" {
			t.Errorf("%s %s has no reason", a[0], a[1])
		}
	}
	for _, r := range e.Reasons {
		if !slices.Contains(added, [2]string{r.Kind, r.Name}) {
			t.Errorf("%s %s isn't there, for the reason %s", r.Kind, r.Name, r.Why)
		}
	}
}

// TestRootReasons: each of the driver's files has the capabilities that select it as its reason,
// and each way of telling the loader has one.
func TestRootReasons(t *testing.T) {
	dir := testDir()
	dir.Libraries = append(dir.Libraries, driver.Library{File: "lib/libcuda.so.550.1", Bits: 32}, driver.Library{File: "lib64/libnvidia-newer.so.550.1", Bits: 64})
	dir.Programs = append(dir.Programs, "nvidia-imex")
	dir.Extras = []driver.File{
		{Source: "/driver/gsp", Destination: "/lib/firmware/nvidia/550.1/gsp_ga10x.bin"},
		{Source: "/driver/icd", Destination: "/etc/OpenCL/vendors/nvidia.icd"},
	}
	caps := gpu.Compute | gpu.Graphics | gpu.Compat32
	e := DescribeRoot(OtherTarget, []string{"LD_LIBRARY_PATH=/usr/local/cuda/compat:" + OtherTarget + "/lib64:/x"}, dir, caps, RootOptions{})
	const lib, bin = OtherTarget + "/lib64/", OtherTarget + "/bin/"
	want := map[edits.Reason]bool{}
	for _, r := range []edits.Reason{
		{Kind: "library", Name: lib + "libcuda.so.550.1", Why: "driver capability compute"},
		{Kind: "library", Name: OtherTarget + "/lib/libcuda.so.550.1", Why: "driver capability compute or compat32"},
		{Kind: "library", Name: lib + "libnvidia-glcore.so.550.1", Why: "driver capability graphics"},
		{Kind: "library", Name: lib + "libnvidia-newer.so.550.1", Why: "driver capability compute or graphics"},
		{Kind: "program", Name: bin + "nvidia-smi", Why: "driver capability none"},
		{Kind: "program", Name: bin + "nvidia-imex", Why: "driver capability compute"},
		{Kind: "mount", Name: "/usr/bin/nvidia-smi", Why: "driver capability none, where people look for it"},
		{Kind: "mount", Name: "/lib/firmware/nvidia/550.1/gsp_ga10x.bin", Why: "the GPUs' own processors load it; driver capability compute or graphics"},
		{Kind: "mount", Name: "/etc/OpenCL/vendors/nvidia.icd", Why: "driver capability compute"},
		{Kind: "mount", Name: cachePath, Why: whyCacheBound},
		{Kind: "file", Name: cachePath, Why: whyCache},
		{Kind: "file", Name: LoaderLine, Why: whyLoaderLine},
		{Kind: "variable", Name: "LD_LIBRARY_PATH", Why: whyLibraryPath},
	} {
		want[r] = true
	}
	got := map[edits.Reason]bool{}
	for _, r := range e.Reasons {
		got[r] = true
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	// berth doesn't explain an image's own search path.
	if e := DescribeRoot(Target, []string{"LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64"}, dir, caps, RootOptions{}); e.Why("variable", "LD_LIBRARY_PATH") != "" {
		t.Error("the image's LD_LIBRARY_PATH is explained")
	}
}
