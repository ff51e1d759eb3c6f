package discover

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
)

// canned is a source that returns a fixed report.
type canned struct {
	report gpu.Report
	err    error
}

func (c canned) Read(context.Context) (gpu.Report, error) { return c.report, c.err }

// tree writes files and links ("-> target", below the tree) into a new directory.
func tree(t *testing.T, files, links map[string]string) gpu.Host {
	t.Helper()
	root := t.TempDir()
	make := func(name string, f func(path string) error) {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), f(path)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		make(name, func(path string) error { return os.WriteFile(path, []byte(text), 0o644) })
	}
	for name, target := range links {
		make(name, func(path string) error { return os.Symlink(filepath.Join(root, target), path) })
	}
	return gpu.Host{Dev: root + "/dev", Proc: root + "/proc", Sys: root + "/sys"}
}

func TestInventory(t *testing.T) {
	const near, far = "sys/devices/pci0000:15/0000:15:01.0/", "sys/devices/pci0000:a7/0000:a7:01.0/"
	h := tree(t, map[string]string{
		"proc/sys/kernel/hostname":                                "node7\n",
		"sys/module/nvidia/version":                               "550.163.01\n",
		"proc/driver/nvidia/gpus/0000:18:00.0/information":        "Device Minor: 1\n",
		"proc/driver/nvidia/gpus/0000:19:00.0/information":        "Model: H100\nGPU UUID: GPU-19\nDevice Minor: 0\n",
		"proc/driver/nvidia/gpus/0000:a8:00.0/information":        "Model: H100\nGPU UUID: GPU-???\nDevice Minor: 2\n",
		"proc/driver/nvidia/capabilities/gpu1/mig/gi3/access":     "DeviceFileMinor: 30\n",
		"proc/driver/nvidia/capabilities/gpu1/mig/gi3/ci0/access": "DeviceFileMinor: 31\n",
		near + "0000:18:00.0/numa_node":                           "0\n", near + "0000:18:00.0/local_cpulist": "0-3\n",
		near + "0000:18:00.0/drm/renderD129/dev": "226:129\n", near + "0000:18:00.0/drm/card1/dev": "226:1\n",
		near + "0000:19:00.0/numa_node": "0\n", near + "0000:1a:00.0/numa_node": "0\n",
		far + "0000:a8:00.0/numa_node":              "1\n",
		"sys/devices/system/node/node0/cpulist":     "0-3\n",
		"sys/devices/system/node/node1/cpulist":     "4-7\n",
		"sys/class/infiniband_verbs/uverbs3/ibdev":  "mlx5_0\n",
		"sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
	}, map[string]string{
		"sys/bus/pci/devices/0000:18:00.0":   near + "0000:18:00.0",
		"sys/bus/pci/devices/0000:19:00.0":   near + "0000:19:00.0",
		"sys/bus/pci/devices/0000:1a:00.0":   near + "0000:1a:00.0",
		"sys/bus/pci/devices/0000:a8:00.0":   far + "0000:a8:00.0",
		"sys/class/infiniband/mlx5_0/device": near + "0000:1a:00.0",
	})
	source := canned{report: gpu.Report{
		Driver: gpu.Driver{Version: "550", CUDA: "12.4"},
		GPUs: []gpu.GPU{
			{
				UUID: "GPU-18", Index: 0, Minor: 1, PCI: "0000:18:00.0", Model: "H100", NUMA: -1, MIG: true,
				Slices: []gpu.Slice{
					{UUID: "MIG-1", GI: 3, CI: 0, Profile: "1g.10gb"},
					{UUID: "MIG-2", GI: 4, CI: 0, Profile: "1g.10gb", Index: 1},
				},
			},
			{UUID: "LOST-1", Index: 1, Minor: -1, NUMA: -1, Lost: "nvmlDeviceGetHandleByIndex: GPU is lost"},
		},
		NVLinks: []gpu.Link{{A: 0, B: 1, NVLinks: 12}},
	}}
	got, err := Inventory(t.Context(), source, h)
	if err != nil {
		t.Fatal(err)
	}
	want := gpu.Inventory{
		Hostname: "node7",
		Driver:   gpu.Driver{Version: "550.163.01", CUDA: "12.4"},
		GPUs: []gpu.GPU{
			{
				UUID: "GPU-18", Index: 0, Minor: 1, PCI: "0000:18:00.0", Model: "H100", NUMA: 0, CPUs: "0-3", MIG: true,
				DRI: []gpu.DRINode{{Name: "card1", Minor: 1}, {Name: "renderD129", Minor: 129}},
				Slices: []gpu.Slice{
					{UUID: "MIG-1", GI: 3, CI: 0, Profile: "1g.10gb", GIMinor: 30, CIMinor: 31},
					{UUID: "MIG-2", GI: 4, CI: 0, Profile: "1g.10gb", Index: 1, GIMinor: -1, CIMinor: -1},
				},
			},
			{UUID: "GPU-19", Index: 1, Minor: 0, PCI: "0000:19:00.0", Model: "H100", NUMA: 0, Lost: "nvmlDeviceGetHandleByIndex: GPU is lost"},
			{UUID: "LOST-0000:a8:00.0", Index: 2, Minor: 2, PCI: "0000:a8:00.0", Model: "H100", NUMA: 1, Lost: "not reported by NVML"},
		},
		Links: []gpu.Link{
			{A: 0, B: 1, NVLinks: 12, PCIe: gpu.PathPIX},
			{A: 0, B: 2, PCIe: gpu.PathSYS},
			{A: 1, B: 2, PCIe: gpu.PathSYS},
		},
		NICs: []gpu.NIC{{
			Name: "mlx5_0", PCI: "0000:1a:00.0", NUMA: 0, Uverbs: "uverbs3",
			Ports: []gpu.Port{{Number: 1, State: "ACTIVE"}},
			Near:  []gpu.Path{gpu.PathPIX, gpu.PathPIX, gpu.PathSYS}, Peers: []gpu.Path{""},
		}},
		NUMA: []gpu.NUMANode{{ID: 0, CPUs: "0-3"}, {ID: 1, CPUs: "4-7"}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if source.report.GPUs[0].Slices[0].GIMinor != 0 || source.report.GPUs[1].UUID != "LOST-1" {
		t.Error("the report was changed")
	}
}

func TestInventoryErrors(t *testing.T) {
	h := tree(t, map[string]string{"proc/sys/kernel/hostname": "node7"}, nil)
	none := &gpu.NoDriverError{Library: "libnvidia-ml.so.1", Reason: "not there"}
	if _, err := Inventory(t.Context(), canned{err: none}, h); !errors.Is(err, gpu.ErrNoDriver) {
		t.Error(err)
	}
	if _, err := Inventory(t.Context(), canned{}, gpu.Host{Proc: "/nonexistent"}); err == nil {
		t.Error("a node without /proc was read")
	}
	// Without procfs and sysfs the library's report is used as it is.
	got, err := Inventory(t.Context(), canned{report: gpu.Report{Driver: gpu.Driver{Version: "550"}, GPUs: []gpu.GPU{{UUID: "GPU-0", PCI: "0000:18:00.0"}}}}, h)
	if err != nil || got.Driver.Version != "550" || got.GPUs[0].NUMA != -1 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestComplete(t *testing.T) {
	lost := func(index int, pci, uuid string) gpu.GPU {
		return gpu.GPU{UUID: uuid, Index: index, PCI: pci, Minor: -1, Lost: "why"}
	}
	known := []driver.GPU{{PCI: "a", UUID: "GPU-a", Minor: 4}, {PCI: "b", Minor: 5}, {PCI: "c", Minor: -1}}
	tests := []struct {
		name     string
		reported []gpu.GPU
		known    []driver.GPU
		want     []gpu.GPU
	}{
		{name: "nothing", want: nil},
		{name: "more nameless than known", reported: []gpu.GPU{lost(0, "", "LOST-0"), lost(1, "", "LOST-1")}, known: known[1:2], want: []gpu.GPU{
			{UUID: "LOST-b", PCI: "b", Minor: 5, Lost: "why"}, lost(1, "", "LOST-1"),
		}},
		{name: "address known, the rest not", reported: []gpu.GPU{lost(0, "a", "LOST-a")}, known: known[:1], want: []gpu.GPU{
			{UUID: "GPU-a", PCI: "a", Minor: 4, Lost: "why"},
		}},
		{name: "unlisted", known: known, want: []gpu.GPU{
			{UUID: "GPU-a", Index: 0, PCI: "a", Minor: 4, NUMA: -1, Lost: "not reported by NVML"},
			{UUID: "LOST-b", Index: 1, PCI: "b", Minor: 5, NUMA: -1, Lost: "not reported by NVML"},
			{UUID: "LOST-c", Index: 2, PCI: "c", Minor: -1, NUMA: -1, Lost: "not reported by NVML"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, completeGPUs(tt.reported, tt.known)); d != "" {
				t.Error(d)
			}
		})
	}
}
