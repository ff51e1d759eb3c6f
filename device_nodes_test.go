package berth

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu"
)

// TestIdentifyDevices: nodes are matched by their minors, which differ from the indexes.
func TestIdentifyDevices(t *testing.T) {
	inv := gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-a", Index: 0, Minor: 3},
		{UUID: "GPU-b", Index: 1, Minor: 0},
		{UUID: "GPU-c", Index: 2, Minor: 1, MIG: true, Slices: []gpu.Slice{
			{UUID: "MIG-a", Index: 0, GIMinor: 10, CIMinor: 11}, {UUID: "MIG-b", Index: 1, GIMinor: 12, CIMinor: 13},
		}},
	}}
	majors := map[string]uint32{"nvidia-frontend": 195, "nvidia-caps": 234, "nvidia-uvm": 507}
	gpuNode := func(minor int64) specs.LinuxDevice { return specs.LinuxDevice{Type: "c", Major: 195, Minor: minor} }
	capNode := func(minor int64) specs.LinuxDevice { return specs.LinuxDevice{Type: "c", Major: 234, Minor: minor} }
	for _, tt := range []struct {
		name  string
		nodes []specs.LinuxDevice
		want  []string
		err   string
	}{
		{"none", nil, nil, ""},
		{"what all share", []specs.LinuxDevice{gpuNode(255), gpuNode(254), {Type: "c", Major: 507}, {Type: "c", Major: 1, Minor: 3}}, nil, ""},
		{"two, each once", []specs.LinuxDevice{gpuNode(0), gpuNode(3), gpuNode(0)}, []string{"GPU-a", "GPU-b"}, ""},
		{"a block device of the number", []specs.LinuxDevice{{Type: "b", Major: 195}}, nil, ""},
		{"a slice", []specs.LinuxDevice{gpuNode(1), capNode(12), capNode(13)}, []string{"MIG-b"}, ""},
		{"slices and a GPU", []specs.LinuxDevice{capNode(10), capNode(11), capNode(12), capNode(13), gpuNode(1), gpuNode(0)}, []string{"GPU-b", "MIG-a", "MIG-b"}, ""},
		{"half a slice", []specs.LinuxDevice{gpuNode(1), capNode(12)}, nil, "GPU 2 (GPU-c) is in MIG mode"},
		{"one that isn't there", []specs.LinuxDevice{gpuNode(0), gpuNode(7)}, nil, "/dev/nvidia7 belongs to no GPU"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			devices, err := devicesOfNodes(inv, majors, tt.nodes)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			var got []string
			for _, d := range devices {
				got = append(got, d.UUID)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
