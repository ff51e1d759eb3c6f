package berth

import (
	"slices"
	"testing"

	"github.com/berth-gpu/berth/gpu"
)

func TestAddNCCLFeatures(t *testing.T) {
	extra := func(name string, minor int) gpu.FeatureNode {
		return gpu.FeatureNode{Feature: name, Path: name, Minor: minor}
	}
	both := gpu.Inventory{FeatureNodes: []gpu.FeatureNode{extra("gdrcopy", 0), extra("imex", 0)}}
	channels := gpu.Inventory{FeatureNodes: []gpu.FeatureNode{extra("imex", 0), extra("imex", 1)}}
	nics := []gpu.Device{{UUID: "HCA-0"}}
	for _, tt := range []struct {
		name    string
		allowed []string
		inv     gpu.Inventory
		nics    []gpu.Device
		asked   []gpu.Feature
		want    []gpu.Feature
	}{
		{"allowed", []string{"gdrcopy", "imex"}, both, nics, nil, []gpu.Feature{"gdrcopy", "imex=0"}},
		{"not allowed", []string{"gds"}, both, nics, nil, nil},
		{"not there", []string{"gdrcopy", "imex"}, gpu.Inventory{}, nics, nil, nil},
		{"without NICs", []string{"gdrcopy", "imex"}, both, nil, []gpu.Feature{"gds"}, []gpu.Feature{"gds"}},
		{"asked for", []string{"gdrcopy", "imex"}, both, nics, []gpu.Feature{"gdrcopy", "imex=0"}, []gpu.Feature{"gdrcopy", "imex=0"}},
		{"several channels", []string{"imex"}, channels, nics, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := (Policy{Features: tt.allowed}).addNCCLFeatures(tt.inv, tt.asked, tt.nics); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
