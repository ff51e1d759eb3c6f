package gpu_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

func TestOffers(t *testing.T) {
	inv := gpu.Inventory{NVSwitches: 4, FeatureNodes: []gpu.FeatureNode{
		{Feature: "gds", Path: "nvidia-fs0"},
		{Feature: "gds", Path: "nvidia-fs1", Minor: 1},
		{Feature: "imex", Minor: 0},
		{Feature: "imex", Minor: 7},
	}}
	want := map[string][]gpu.Feature{
		"gds": {"gds"}, "imex": {"imex=0", "imex=7"}, "fabricmanager": {"fabricmanager"}, "gdrcopy": nil, "nvswitch": nil,
	}
	for _, name := range gpu.FeatureNames() {
		if d := cmp.Diff(want[name], inv.Offers(name)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		for _, f := range inv.Offers(name) {
			if again, err := request.ParseFeature(string(f)); err != nil || again != f {
				t.Errorf("request.ParseFeature(%q) = %q, %v", f, again, err)
			}
		}
	}
	if got := (gpu.Inventory{}).Offers("fabricmanager"); got != nil {
		t.Errorf("a node without NVSwitches offers %v", got)
	}
}

func TestFeatureWants(t *testing.T) {
	tests := []struct {
		feature gpu.Feature
		extra   gpu.FeatureNode
		want    bool
	}{
		{"gds", gpu.FeatureNode{Feature: "gds", Minor: 7}, true},
		{"gds", gpu.FeatureNode{Feature: "gdrcopy"}, false},
		{"imex=1-3", gpu.FeatureNode{Feature: "imex", Minor: 0}, false},
		{"imex=1-3", gpu.FeatureNode{Feature: "imex", Minor: 1}, true},
		{"imex=1-3", gpu.FeatureNode{Feature: "imex", Minor: 3}, true},
		{"imex=1-3", gpu.FeatureNode{Feature: "imex", Minor: 4}, false},
		{"imex=2", gpu.FeatureNode{Feature: "imex", Minor: 2}, true},
		{"imex=2", gpu.FeatureNode{Feature: "imex", Minor: 3}, false},
		{"imex=2", gpu.FeatureNode{Feature: "nvswitch", Minor: 2}, false},
		{"imex=?", gpu.FeatureNode{Feature: "imex", Minor: 0}, false},
		{"imex", gpu.FeatureNode{Feature: "imex", Minor: 0}, false},
		{"", gpu.FeatureNode{}, false},
	}
	for _, tt := range tests {
		t.Run(string(tt.feature), func(t *testing.T) {
			if got := tt.feature.Includes(tt.extra); got != tt.want {
				t.Errorf("%v of %+v", got, tt.extra)
			}
		})
	}
}
