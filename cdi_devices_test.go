package berth

import (
	"strings"
	"testing"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

// TestLeasedDriversHaveNoCDIDevices: a CDI device with a node of a driver whose devices berth leases is refused.
func TestLeasedDriversHaveNoCDIDevices(t *testing.T) {
	majors := []gpu.Major{{Number: 1, Name: "mem"}, {Number: 195, Name: "nvidia"}, {Number: 195, Name: "nvidiactl"}, {Number: 231, Name: "infiniband_verbs"}, {Number: 240, Name: "gdrdrv"}, {Number: 508, Name: "nvidia-caps"}}
	for _, tt := range []struct {
		name string
		node edits.Node
		err  string
	}{
		{"null", edits.Node{Path: "/dev/x", Type: "c", Major: 1, Minor: 3}, ""},
		{"RDMA", edits.Node{Path: "/dev/infiniband/uverbs0", Type: "c", Major: 231}, ""},
		{"a block device of the same number", edits.Node{Path: "/dev/b", Type: "b", Major: 195}, ""},
		{"GPU", edits.Node{Path: "/dev/nvidia0", Type: "c", Major: 195}, "node /dev/nvidia0 belongs to nvidia,"},
		{"GPU by another name", edits.Node{Path: "/dev/x", Type: "c", Major: 195}, "v/c=a: its node /dev/x belongs to nvidia,"},
		{"slice", edits.Node{Path: "/dev/nvidia-caps/nvidia-cap21", Type: "c", Major: 508, Minor: 21}, "belongs to nvidia-caps,"},
		{"what many share", edits.Node{Path: "/dev/gdrdrv", Type: "c", Major: 240}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := checkNotLeased([]string{"v/c=a"}, []edits.Node{tt.node}, majors)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
}
