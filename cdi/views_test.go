package cdi

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu"
)

// procHost has the driver's files as NVIDIA's driver has them.
func procHost(t *testing.T) gpu.Host {
	t.Helper()
	proc := t.TempDir()
	for name, content := range map[string]string{
		"version":                                 "NVRM version: 550.1\n",
		"params":                                  "ResmanDebugLevel: 1\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n",
		"registry":                                "Binary: \"\"\n",
		"suspend":                                 "suspend hibernate resume\n",
		"gpus/0000:1b:00.0/information":           "Model: A\n",
		"gpus/0000:1b:00.0/power":                 "Runtime D3 status: Disabled\n",
		"gpus/0000:43:00.0/information":           "Model: B\n",
		"gpus/0000:99:00.0/information":           "Model: foreign\n",
		"capabilities/mig/config":                 "DeviceFileMinor: 1\n",
		"capabilities/gpu3/mig/.keep":             "",
		"capabilities/gpu0/mig/gi3/access":        "DeviceFileMinor: 30\n",
		"capabilities/gpu0/mig/gi3/ci0/access":    "DeviceFileMinor: 31\n",
		"capabilities/gpu0/mig/gi4/access":        "DeviceFileMinor: 39\n",
		"capabilities/gpu0/mig/gi4/ci0/access":    "DeviceFileMinor: 40\n",
		"capabilities/fabric-imex-mgmt":           "DeviceFileMinor: 3\n",
		"../nvidia-fs/version":                    "version: 2.19\n",
		"../nvidia-nvswitch/permissions":          "x\n",
		"../nvidia-caps/mig-minors":               "config 1\nmonitor 2\ngpu0/gi3/access 30\ngpu0/gi3/ci0/access 31\ngpu0/gi3/ci1/access 32\ngpu0/gi4/access 39\ngpu0/gi4/ci0/access 40\n",
		"../nvidia-caps-imex-channels/permission": "x\n",
	} {
		write(t, filepath.Join(proc, "driver/nvidia", name), content)
	}
	return gpu.Host{Proc: proc}
}

func newViews(t *testing.T) Views {
	return Views{Host: procHost(t), State: filepath.Join(t.TempDir(), "state"), Epoch: "1"}
}

// shown says what a container sees of a mount: content, the target of a link, "/"
// for a directory with nothing in it.
func shown(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		must(t, err)
		name, err := filepath.Rel(dir, path)
		must(t, err)
		switch {
		case d.IsDir():
			entries, err := os.ReadDir(path)
			must(t, err)
			if len(entries) == 0 {
				all[name] = "/"
			}
		case d.Type()&fs.ModeSymlink != 0:
			all[name], err = os.Readlink(path)
			must(t, err)
		default:
			all[name] = read(t, path)
		}
		return nil
	}))
	return all
}

func TestViewOfProcDriver(t *testing.T) {
	const params = "ResmanDebugLevel: 1\nModifyDeviceFiles: 0\nDeviceFileMode: 438\n"
	usually := map[string]string{"nvidia/version": "NVRM version: 550.1\n", "nvidia/params": params, "nvidia/registry": "Binary: \"\"\n"}
	for _, tt := range []struct {
		name     string
		leased   string
		features []gpu.Feature
		want     map[string]string
	}{
		{
			name: "a GPU", leased: "GPU-a",
			want: map[string]string{
				"nvidia/gpus/0000:1b:00.0/information": "Model: A\n", "nvidia/gpus/0000:1b:00.0/power": "Runtime D3 status: Disabled\n",
				"nvidia/capabilities/gpu3/mig": "/", "nvidia-caps/mig-minors": "",
			},
		},
		{
			name: "a slice", leased: "MIG-2",
			want: map[string]string{
				"nvidia/gpus/0000:43:00.0/information":        "Model: B\n",
				"nvidia/capabilities/gpu0/mig/gi4/access":     "DeviceFileMinor: 39\n",
				"nvidia/capabilities/gpu0/mig/gi4/ci0/access": "DeviceFileMinor: 40\n",
				"nvidia-caps/mig-minors":                      "gpu0/gi4/access 39\ngpu0/gi4/ci0/access 40\n",
			},
		},
		{
			name: "a GPU that is cut, and another", leased: "GPU-b GPU-a", features: []gpu.Feature{"gdrcopy", "gds"},
			want: map[string]string{
				"nvidia/gpus/0000:1b:00.0/information": "Model: A\n", "nvidia/gpus/0000:1b:00.0/power": "Runtime D3 status: Disabled\n",
				"nvidia/gpus/0000:43:00.0/information":        "Model: B\n",
				"nvidia/capabilities/gpu3/mig":                "/",
				"nvidia/capabilities/gpu0/mig/gi3/access":     "DeviceFileMinor: 30\n",
				"nvidia/capabilities/gpu0/mig/gi3/ci0/access": "DeviceFileMinor: 31\n",
				"nvidia/capabilities/gpu0/mig/gi4/access":     "DeviceFileMinor: 39\n",
				"nvidia/capabilities/gpu0/mig/gi4/ci0/access": "DeviceFileMinor: 40\n",
				"nvidia-caps/mig-minors":                      "gpu0/gi3/access 30\ngpu0/gi3/ci0/access 31\ngpu0/gi4/access 39\ngpu0/gi4/ci0/access 40\n",
				"nvidia-fs":                                   "/",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := newViews(t)
			for name, content := range usually {
				tt.want[name] = content
			}
			e, err := v.Edits(inventory(), devices(strings.Fields(tt.leased)), usual(tt.features...))
			must(t, err)
			must(t, e.Validate())
			want := []specs.Mount{bindView(e.Mounts[0].Source, "/proc/driver")}
			if tt.features != nil {
				want = append(want, bindView(v.Host.ProcPath("driver/nvidia-fs"), "/proc/driver/nvidia-fs"))
			}
			if d := cmp.Diff(want, e.Mounts); d != "" {
				t.Errorf("mounts (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.want, shown(t, e.Mounts[0].Source)); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestViewOfNothing(t *testing.T) {
	v := newViews(t)
	e, err := v.Edits(inventory(), nil, usual("gds"))
	if err != nil || !e.Empty() {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := v.Edits(inventory(), devices([]string{"GPU-gone"}), usual()); err == nil {
		t.Error("a GPU that isn't there has a view")
	}
}

func TestParams(t *testing.T) {
	for params, want := range map[string]string{
		"":                                 "ModifyDeviceFiles: 0\n",
		"ModifyDeviceFiles: 1":             "ModifyDeviceFiles: 0\n",
		"A: 1\nModifyDeviceFiles: 1\nB: 2": "A: 1\nModifyDeviceFiles: 0\nB: 2",
		"A: 1\nNotModifyDeviceFiles: 1\n":  "ModifyDeviceFiles: 0\nA: 1\nNotModifyDeviceFiles: 1\n",
	} {
		if got := withoutNodes(params); got != want {
			t.Errorf("%q: %q, want %q", params, got, want)
		}
	}
}

// Containers with the same devices share a view; whatever it depends on makes another.
func TestViewsAreShared(t *testing.T) {
	v := newViews(t)
	source := func(v Views, inv gpu.Inventory, leased string, wish Wish) string {
		e, err := v.Edits(inv, devices(strings.Fields(leased)), wish)
		must(t, err)
		return e.Mounts[0].Source
	}
	inv := inventory()
	first := source(v, inv, "GPU-a MIG-1", usual())
	for what, same := range map[string]string{
		"again":              source(v, inv, "GPU-a MIG-1", usual()),
		"in another order":   source(v, inv, "MIG-1 GPU-a", usual()),
		"with graphics":      source(v, inv, "GPU-a MIG-1", Wish{Capabilities: gpu.Graphics}),
		"with other devices": source(v, inv, "GPU-a MIG-1", usual("gdrcopy")),
	} {
		if same != first {
			t.Errorf("%s: another view", what)
		}
	}
	later, driver, moved, cut := v, inventory(), inventory(), inventory()
	later.Epoch, driver.Driver.Version, moved.GPUs[0].PCI, cut.GPUs[1].Slices[0].GI = "2", "560.1", "0000:99:00.0", 5
	for what, other := range map[string]string{
		"fewer devices":      source(v, inv, "GPU-a", usual()),
		"a later inventory":  source(later, inv, "GPU-a MIG-1", usual()),
		"another driver":     source(v, driver, "GPU-a MIG-1", usual()),
		"another place":      source(v, moved, "GPU-a MIG-1", usual()),
		"another instance":   source(v, cut, "GPU-a MIG-1", usual()),
		"GPUDirect Storage":  source(v, inv, "GPU-a MIG-1", usual("gds")),
		"the parent instead": source(v, inv, "GPU-a GPU-b", usual()),
	} {
		if other == first {
			t.Errorf("%s: the same view", what)
		}
	}
}

// Who may mount can write through the bind: the next container gets what was meant.
func TestChangedViewIsMadeAnew(t *testing.T) {
	v := newViews(t)
	leased := devices([]string{"GPU-a"})
	e, err := v.Edits(inventory(), leased, usual())
	must(t, err)
	want := shown(t, e.Mounts[0].Source)
	must(t, os.Remove(filepath.Join(e.Mounts[0].Source, "nvidia/params")))
	write(t, filepath.Join(e.Mounts[0].Source, "nvidia/params"), "ModifyDeviceFiles: 1\n")
	e, err = v.Edits(inventory(), leased, usual())
	must(t, err)
	if d := cmp.Diff(want, shown(t, e.Mounts[0].Source)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestLinksByPath(t *testing.T) {
	for _, tt := range []struct {
		leased string
		wish   gpu.Capabilities
		want   map[string]string // nil: no mount
	}{
		{"GPU-a", gpu.Compute | gpu.Utility | gpu.Video, nil},
		{"MIG-1", gpu.Graphics, nil},
		{"GPU-a", gpu.Graphics, map[string]string{"pci-0000:1b:00.0-card": "../card1", "pci-0000:1b:00.0-render": "../renderD129"}},
		{"GPU-b GPU-a", gpu.Display, map[string]string{
			"pci-0000:1b:00.0-card": "../card1", "pci-0000:1b:00.0-render": "../renderD129", "pci-0000:43:00.0-card": "../card2",
		}},
	} {
		t.Run(tt.leased+" "+tt.wish.String(), func(t *testing.T) {
			e, err := newViews(t).Edits(inventory(), devices(strings.Fields(tt.leased)), Wish{Capabilities: tt.wish})
			must(t, err)
			mounts := e.Mounts[1:]
			if tt.want == nil {
				if len(mounts) > 0 {
					t.Errorf("mounts %+v", mounts)
				}
				return
			}
			if d := cmp.Diff([]specs.Mount{bindView(mounts[0].Source, "/dev/dri/by-path")}, mounts); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if d := cmp.Diff(tt.want, shown(t, mounts[0].Source)); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

// What finding a view costs at each start.
func BenchmarkView(b *testing.B) {
	for _, n := range []int{1, 8, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			v := Views{Host: gpu.Host{Proc: b.TempDir()}, State: b.TempDir(), Epoch: "1"}
			var inv gpu.Inventory
			for i := range n {
				g := gpu.GPU{UUID: fmt.Sprintf("GPU-%d", i), Minor: i, PCI: fmt.Sprintf("0000:%02x:00.0", i)}
				inv.GPUs = append(inv.GPUs, g)
				dir := v.Host.ProcPath("driver/nvidia/gpus", g.PCI)
				if err := os.MkdirAll(dir, 0o755); err != nil {
					b.Fatal(err)
				}
				if err := os.WriteFile(dir+"/information", []byte("Model: X\n"), 0o444); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if _, err := v.Edits(inv, inv.Devices(), usual()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
