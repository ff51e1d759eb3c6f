package cdi

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/gpu"
)

func inventory() gpu.Inventory {
	return gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-a", Index: 0, Minor: 3, PCI: "0000:1b:00.0", DRI: []gpu.DRINode{{Name: "card1", Minor: 1}, {Name: "renderD129", Minor: 129}}},
		{UUID: "GPU-b", Index: 1, Minor: 0, PCI: "0000:43:00.0", MIG: true, DRI: []gpu.DRINode{{Name: "card2", Minor: 2}}, Slices: []gpu.Slice{
			{UUID: "MIG-1", Profile: "1g.10gb", GI: 3, GIMinor: 30, CIMinor: 31}, {UUID: "MIG-2", Index: 1, Profile: "1g.10gb", GI: 4, GIMinor: 39, CIMinor: 40},
		}},
		{UUID: "GPU-lost", Index: 2, Minor: 2, Lost: "GPU is lost"},
		{UUID: "GPU-odd", Index: 3, Minor: -1},
	}, FeatureNodes: []gpu.FeatureNode{
		{Feature: "gdrcopy", Path: "gdrdrv", Major: 236},
		{Feature: "imex", Path: "nvidia-caps-imex-channels/channel0", Major: 234},
		{Feature: "imex", Path: "nvidia-caps-imex-channels/channel1", Major: 234, Minor: 1},
		{Feature: "imex", Path: "nvidia-caps-imex-channels/channel3", Major: 234, Minor: 3},
		{Feature: "nvswitch", Path: "nvidia-nvswitch0", Major: 235},
		{Feature: "nvswitch", Path: "nvidia-nvswitchctl", Major: 235, Minor: 255},
	}}
}

func majors() map[string]uint32 {
	return map[string]uint32{"nvidia": 195, "nvidia-modeset": 195, "nvidia-uvm": 508, "nvidia-caps": 511, "drm": 226}
}

// usualSelection is the selection for a container that makes no choice.
func usualSelection(features ...gpu.Feature) Selection {
	return Selection{Capabilities: gpu.Compute | gpu.Utility, Features: features}
}

func TestDevices(t *testing.T) {
	node := func(path string, major, minor int64, mode uint32) edits.Node {
		return edits.Node{Path: path, Type: "c", Major: major, Minor: minor, Mode: mode, Access: "rw"}
	}
	const all = 0o666
	gpuA, control := node("/dev/nvidia3", 195, 3, all), node("/dev/nvidiactl", 195, 255, all)
	uvm, tools, modeset := node("/dev/nvidia-uvm", 508, 0, all), node("/dev/nvidia-uvm-tools", 508, 1, all), node("/dev/nvidia-modeset", 195, 254, all)
	card, render := node("/dev/dri/card1", 226, 1, all), node("/dev/dri/renderD129", 226, 129, all)
	gpuB, card2 := node("/dev/nvidia0", 195, 0, all), node("/dev/dri/card2", 226, 2, all)
	slice1 := []edits.Node{node("/dev/nvidia-caps/nvidia-cap30", 511, 30, 0o444), node("/dev/nvidia-caps/nvidia-cap31", 511, 31, 0o444)}
	slice2 := []edits.Node{node("/dev/nvidia-caps/nvidia-cap39", 511, 39, 0o444), node("/dev/nvidia-caps/nvidia-cap40", 511, 40, 0o444)}
	nodes := func(parts ...any) (all []edits.Node) {
		for _, p := range parts {
			switch p := p.(type) {
			case edits.Node:
				all = append(all, p)
			case []edits.Node:
				all = append(all, p...)
			}
		}
		return all
	}
	for _, tt := range []struct {
		name      string
		leased    string
		selection Selection
		less      string // name of a missing major
		want      []edits.Node
	}{
		{name: "none", selection: usualSelection("gdrcopy")},
		{name: "a GPU has the node of its minor", leased: "GPU-a", selection: usualSelection(), want: nodes(gpuA, control, uvm, tools)},
		{name: "two slices of one GPU share its node", leased: "MIG-1 MIG-2", selection: usualSelection(), want: nodes(gpuB, slice1, slice2, control, uvm, tools)},
		{name: "utility alone", leased: "GPU-a", selection: Selection{Capabilities: gpu.Utility}, less: "nvidia-uvm", want: nodes(gpuA, control)},
		{name: "graphics", leased: "GPU-a", selection: Selection{Capabilities: gpu.Graphics}, want: nodes(gpuA, card, render, control, modeset)},
		{name: "display", leased: "GPU-a", selection: Selection{Capabilities: gpu.Display}, want: nodes(gpuA, card, render, control, modeset)},
		{name: "compute and graphics", leased: "GPU-a", selection: Selection{Capabilities: gpu.Compute | gpu.Graphics}, want: nodes(gpuA, card, render, control, uvm, tools, modeset)},
		{name: "video", leased: "GPU-a", selection: Selection{Capabilities: gpu.Video | gpu.NGX | gpu.Compat32}, want: nodes(gpuA, control)},
		{name: "graphics without nvidia-drm", leased: "GPU-a", selection: Selection{Capabilities: gpu.Graphics}, less: "drm", want: nodes(gpuA, control, modeset)},
		{name: "graphics without nvidia-modeset", leased: "GPU-a", selection: Selection{Capabilities: gpu.Graphics}, less: "nvidia-modeset", want: nodes(gpuA, card, render, control)},
		{name: "a slice has no graphics nodes, which are the whole GPU's", leased: "MIG-1", selection: Selection{Capabilities: gpu.Graphics}, want: nodes(gpuB, slice1, control, modeset)},
		{name: "a whole GPU in MIG mode has them", leased: "GPU-b", selection: Selection{Capabilities: gpu.Graphics}, want: nodes(gpuB, card2, control, modeset)},
		{
			name: "all capabilities bring no feature", leased: "GPU-a", selection: Selection{Capabilities: ^gpu.Capabilities(0)},
			want: nodes(gpuA, card, render, control, uvm, tools, modeset),
		},
		{name: "gdrcopy", leased: "GPU-a", selection: usualSelection("gdrcopy"), want: nodes(gpuA, control, uvm, tools, node("/dev/gdrdrv", 236, 0, all))},
		{
			name: "nvswitch", leased: "GPU-a", selection: usualSelection("nvswitch"),
			want: nodes(gpuA, control, uvm, tools, node("/dev/nvidia-nvswitch0", 235, 0, all), node("/dev/nvidia-nvswitchctl", 235, 255, all)),
		},
		{
			name: "one IMEX channel", leased: "GPU-a", selection: usualSelection("imex=1"),
			want: nodes(gpuA, control, uvm, tools, node("/dev/nvidia-caps-imex-channels/channel1", 234, 1, all)),
		},
		{
			name: "two IMEX channels and GDRCopy", leased: "GPU-a", selection: usualSelection("gdrcopy", "imex=0-1"),
			want: nodes(gpuA, control, uvm, tools, node("/dev/gdrdrv", 236, 0, all),
				node("/dev/nvidia-caps-imex-channels/channel0", 234, 0, all), node("/dev/nvidia-caps-imex-channels/channel1", 234, 1, all)),
		},
		{name: "a socket is no node", leased: "GPU-a", selection: usualSelection("fabricmanager"), want: nodes(gpuA, control, uvm, tools)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := majors()
			delete(m, tt.less)
			got, err := Devices(inventory(), devices(strings.Fields(tt.leased)), m, tt.selection)
			if err != nil {
				t.Fatal(err)
			}
			want := edits.Edits{Nodes: tt.want}
			if tt.want != nil {
				want.Env = map[string]string{"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NVIDIA_VISIBLE_DEVICES": "void"}
			}
			if d := cmp.Diff(want, got, withoutReasons()); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if err := got.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

// withoutReasons compares edits without their reasons, which explain_test.go tests.
func withoutReasons() cmp.Option { return cmpopts.IgnoreFields(edits.Edits{}, "Reasons") }

func devices(uuids []string) []gpu.Device {
	var all []gpu.Device
	for _, u := range uuids {
		all = append(all, gpu.Device{UUID: u})
	}
	return all
}

func TestDevicesRefuses(t *testing.T) {
	for _, tt := range []struct {
		name      string
		leased    string
		less      string // name of a missing major
		selection gpu.Feature
		want      string
	}{
		{name: "vanished", leased: "MIG-9", want: "device MIG-9: the node doesn't have it any more"},
		{name: "lost", leased: "GPU-lost", want: "device GPU-lost: lost: GPU is lost"},
		{name: "without a minor", leased: "GPU-odd", want: "device GPU-odd: its minor number is unknown"},
		{name: "without uvm", leased: "GPU-a", less: "nvidia-uvm", want: "/proc/devices has no nvidia-uvm"},
		{name: "without capabilities", leased: "MIG-1", less: "nvidia-caps", want: "device MIG-1: /proc/devices has no nvidia-caps"},
		{name: "without nvidia-fs", leased: "GPU-a", selection: "gds", want: "feature gds: this node has no /dev/nvidia-fs*"},
		{name: "without a channel", leased: "GPU-a", selection: "imex=0-3", want: "feature imex=0-3: this node has no /dev/nvidia-caps-imex-channels/channel2"},
		{name: "with an odd channel", leased: "GPU-a", selection: "imex=3-0", want: "feature imex=3-0: it names no channels"},
		{name: "with an unknown feature", leased: "GPU-a", selection: "magic", want: "feature magic: unknown"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := majors()
			delete(m, tt.less)
			selection := usualSelection()
			if tt.selection != "" {
				selection = usualSelection(tt.selection)
			}
			_, err := Devices(inventory(), devices([]string{tt.leased}), m, selection)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestFiles(t *testing.T) {
	dir := driver.Dir{Path: "/var/lib/berth/driver/550-1", Manifest: driver.Manifest{Programs: []string{"nvidia-debugdump", "nvidia-smi"}}}
	options := []string{"rbind", "ro", "nosuid", "nodev", "rprivate"}
	want := edits.Edits{Mounts: []specs.Mount{
		{Destination: "/usr/local/nvidia", Type: "bind", Source: "/var/lib/berth/driver/550-1", Options: options},
		{Destination: "/usr/bin/nvidia-smi", Type: "bind", Source: "/var/lib/berth/driver/550-1/bin/nvidia-smi", Options: options},
	}}
	if d := cmp.Diff(want, Files(dir, Target, shared.Dir{})); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestPrograms(t *testing.T) {
	dir := driver.Dir{Path: "/d", Manifest: driver.Manifest{Programs: []string{"nvidia-debugdump", "nvidia-smi"}}}
	want := map[string]string{
		"/usr/bin/nvidia-smi":                          "/d/bin/nvidia-smi",
		"/usr/local/nvidia/bin/nvidia-smi":             "/d/bin/nvidia-smi",
		"/usr/local/nvidia/bin/nvidia-debugdump":       "/d/bin/nvidia-debugdump",
		"/usr/local/berth/nvidia/bin/nvidia-smi":       "/d/bin/nvidia-smi",
		"/usr/local/berth/nvidia/bin/nvidia-debugdump": "/d/bin/nvidia-debugdump",
	}
	if d := cmp.Diff(want, Programs(dir)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestIncludes(t *testing.T) {
	for conf, want := range map[string]bool{
		"include /etc/ld.so.conf.d/*.conf\n":          true,
		"include ld.so.conf.d/*.conf":                 true,
		"/opt/lib\n\tinclude\tx.conf ld.so.conf.d/0*": true,
		"":                                   false,
		"# include ld.so.conf.d/*.conf\n":    false,
		"include /opt/ld.so.conf.d/*.conf\n": false,
		"include ld.so.conf.d/[\n":           false,
		"hwcap 0 nosegneg\n":                 false,
	} {
		if got := includesLoaderLine(conf); got != want {
			t.Errorf("includes(%q) = %v", conf, got)
		}
	}
}

// FuzzIncludes: no content of an image's configuration makes a start fail, and a line that includes
// berth's file is found anywhere.
func FuzzIncludes(f *testing.F) {
	f.Add("include /etc/ld.so.conf.d/*.conf\n/opt/lib # x\n")
	f.Add("include [\xff\x00")
	const ours = "/etc/ld.so.conf.d/00-berth.conf"
	f.Fuzz(func(t *testing.T, conf string) {
		includesLoaderLine(conf)
		if !includesLoaderLine("include " + ours + "\n" + conf) {
			t.Errorf("our line before %q isn't found", conf)
		}
	})
}
