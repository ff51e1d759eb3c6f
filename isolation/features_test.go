package isolation

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/devices"
)

// features are the nodes of devices that go with GPUs, each of another driver.
func features() map[string]Number {
	return map[string]Number{
		"/dev/nvidia-fs0": {240, 0}, "/dev/nvidia-fs15": {240, 15}, "/dev/gdrdrv": {241, 0},
		"/dev/nvidia-nvswitch0": {242, 0}, "/dev/nvidia-nvswitchctl": {242, 255}, "/dev/nvidia-nvlink": {243, 0},
		"/dev/nvidia-caps-imex-channels/channel0": {244, 0}, "/dev/nvidia-caps-imex-channels/channel3": {244, 3},
		"/dev/dri/card0": {226, 0}, "/dev/dri/renderD128": {226, 128},
		"/dev/infiniband/uverbs0": {231, 192},
	}
}

// displays are the DRM nodes of a card that is no accelerator.
func displays() map[string]Number {
	return map[string]Number{"/dev/dri/card1": {226, 1}, "/dev/dri/renderD129": {226, 129}}
}

func featureHost() Host {
	h := Host{Majors: []gpu.Major{
		{Number: 1, Name: "mem"},
		{Number: 195, Name: "nvidia"},
		{Number: 226, Name: "drm"},
		{Number: 231, Name: "infiniband_verbs"},
		{Number: 240, Name: "nvidia-fs"},
		{Number: 241, Name: "gdrdrv"},
		{Number: 242, Name: "nvidia-nvswitch"},
		{Number: 243, Name: "nvidia-nvlink"},
		{Number: 244, Name: "nvidia-caps-imex-channels"},
	}}
	for _, n := range displays() {
		h.Ordinary = append(h.Ordinary, n)
	}
	h.Stat = func(path string) (Number, bool) {
		if n, ok := features()[path]; ok {
			return n, true
		}
		n, ok := displays()[path]
		return n, ok
	}
	return h
}

// specsWithNodes are specs that bring all of these nodes, each in another way.
func specsWithNodes() map[string]*specs.Spec {
	denyAll := deny("", every, every, "rwm")
	device, bind, whole := specOf(denyAll), specOf(denyAll), specOf(denyAll, allow("c", 1, 3, "rwm"))
	for _, all := range []map[string]Number{features(), displays()} {
		for path, n := range all {
			rule := allow("c", n.Major, n.Minor, "rwm").Spec()
			device.Linux.Devices = append(device.Linux.Devices, specs.LinuxDevice{Path: path, Type: "c", Major: n.Major, Minor: n.Minor})
			device.Linux.Resources.Devices = append(device.Linux.Resources.Devices, rule)
			bind.Mounts = append(bind.Mounts, specs.Mount{Type: "bind", Source: path, Destination: path})
			bind.Linux.Resources.Devices = append(bind.Linux.Resources.Devices, rule)
			whole.Linux.Resources.Devices = append(whole.Linux.Resources.Devices, allow("c", n.Major, every, "rw").Spec())
		}
	}
	dev := specOf(allow("a", every, every, "rwm"))
	dev.Mounts = []specs.Mount{{Type: "bind", Source: "/dev", Destination: "/dev", Options: []string{"rbind"}}}
	return map[string]*specs.Spec{
		"--device": device, "binds": bind, "whole majors": whole, "--privileged": specOf(allow("", every, every, "rwm")),
		"--privileged and /dev": dev, "every character device": specOf(denyAll, allow("c", every, every, "rw")), "allow all after deny all": specOf(denyAll, allow("a", every, every, "rwm")),
	}
}

// TestFeaturesAreRestricted: devices that go with GPUs are closed unless they are leased one by
// one, in whichever way a spec brings them. A display stays as it was.
func TestFeaturesAreRestricted(t *testing.T) {
	for _, tt := range []struct {
		name   string
		leased []edits.Node
	}{
		{"no lease", nil},
		{"a GPU alone", leased(0)},
		{"a channel and gdrdrv", append(leased(0),
			edits.Node{Path: "/dev/nvidia-caps-imex-channels/channel3", Type: "c", Major: 244, Minor: 3, Access: "rw"},
			edits.Node{Path: "/dev/gdrdrv", Type: "c", Major: 241, Access: "rw"})},
	} {
		for name, spec := range specsWithNodes() {
			t.Run(tt.name+", "+name, func(t *testing.T) {
				e, _, err := RestrictDevices(spec, featureHost(), tt.leased)
				testutil.Must(t, err)
				testutil.Must(t, e.Apply(spec))
				rules := rulesOf(spec)
				want, got := map[string]string{}, map[string]string{}
				for path, n := range features() {
					want[path] = fmt.Sprint(has(tt.leased, n.Major, n.Minor))
					got[path] = fmt.Sprint(devices.Allowed(rules, "c", n.Major, n.Minor, "r") || devices.Allowed(rules, "c", n.Major, n.Minor, "w"))
				}
				for path, n := range displays() {
					want[path] = "true"
					got[path] = fmt.Sprint(devices.Allowed(rules, "c", n.Major, n.Minor, "rw"))
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("what can be opened (-want +got):\n%s", d)
				}
				checkNodesAndBinds(t, spec, tt.leased)
				restrictTwiceOn(t, spec, featureHost(), tt.leased)
			})
		}
	}
}

// checkNodesAndBinds checks that only the nodes and binds of leased devices and of displays are left.
func checkNodesAndBinds(t *testing.T, spec *specs.Spec, leased []edits.Node) {
	t.Helper()
	shown := 0
	for _, d := range spec.Linux.Devices {
		_, display := displays()[d.Path]
		shown += map[bool]int{true: 1}[display]
		if !display && !has(leased, d.Major, d.Minor) {
			t.Errorf("node %s is left", d.Path)
		}
	}
	for _, m := range spec.Mounts {
		_, display := displays()[m.Source]
		shown += map[bool]int{true: 1}[display]
		if n, ok := features()[m.Source]; ok && !has(leased, n.Major, n.Minor) {
			t.Errorf("bind of %s is left", m.Source)
		}
	}
	if n := len(spec.Linux.Devices) + len(spec.Mounts); n > 1 && shown != len(displays()) {
		t.Errorf("%d of the displays' nodes are left", shown)
	}
}

// TestDisplayAloneIsNoAccelerator: the spec of a container with a display's nodes only isn't
// changed.
func TestDisplayAloneIsNoAccelerator(t *testing.T) {
	spec := specOf(deny("", every, every, "rwm"), allow("c", 226, 1, "rw"), allow("c", 226, 129, "rw"))
	spec.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/dri/card1", Type: "c", Major: 226, Minor: 1}}
	spec.Mounts = []specs.Mount{{Type: "bind", Source: "/dev/dri/renderD129", Destination: "/dev/dri/renderD129"}}
	if concerned, err := AcceleratorInSpec(spec, featureHost()); concerned || err != nil {
		t.Errorf("%v, %v", concerned, err)
	}
	h := featureHost()
	h.Ordinary = nil
	if concerned, err := AcceleratorInSpec(spec, h); !concerned || err != nil {
		t.Errorf("where it isn't known as a display: %v, %v", concerned, err)
	}
}
