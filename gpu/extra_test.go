package gpu

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOffers(t *testing.T) {
	inv := Inventory{NVSwitches: 4, Extras: []Extra{
		{Feature: "gds", Path: "nvidia-fs0"},
		{Feature: "gds", Path: "nvidia-fs1", Minor: 1},
		{Feature: "imex", Minor: 0},
		{Feature: "imex", Minor: 7},
	}}
	want := map[string][]Feature{
		"gds": {"gds"}, "imex": {"imex=0", "imex=7"}, "fabricmanager": {"fabricmanager"}, "gdrcopy": nil, "nvswitch": nil,
	}
	for _, name := range FeatureNames() {
		if d := cmp.Diff(want[name], inv.Offers(name)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		for _, f := range inv.Offers(name) {
			if again, err := ParseFeature(string(f)); err != nil || again != f {
				t.Errorf("ParseFeature(%q) = %q, %v", f, again, err)
			}
		}
	}
	if got := (Inventory{}).Offers("fabricmanager"); got != nil {
		t.Errorf("a node without NVSwitches offers %v", got)
	}
}
