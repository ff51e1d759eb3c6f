package leasing

import (
	"testing"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

func TestFeatureBeyond(t *testing.T) {
	for _, tt := range []struct {
		held, wanted string
		want         gpu.Feature
	}{
		{"2", "1", ""},
		{"2,+gds", "1", ""},
		{"2,+gds", "1,+gds", ""},
		{"2,+gds,+imex=0-3", "all,+imex=1-2", ""},
		{"1,+fabricmanager", "1,+fabricmanager", ""},
		{"2", "1,+gds", "gds"},
		{"2,+gds", "1,+gds,+gdrcopy", "gdrcopy"},
		{"1", "1,+fabricmanager", "fabricmanager"},
		{"1,+imex=1-2", "1,+imex=2-3", "imex=2-3"},
		{"1,+imex=1-2", "1,+imex=0-2", "imex=0-2"},
		{"1,+imex=0", "1,+imex=2047", "imex=2047"},
	} {
		t.Run(tt.held+" "+tt.wanted, func(t *testing.T) {
			got, found := featureBeyond(features(t, tt.held), features(t, tt.wanted))
			if got != tt.want || found != (tt.want != "") {
				t.Errorf("%q, %v; want %q", got, found, tt.want)
			}
		})
	}
}

func features(t *testing.T, words string) []gpu.Feature {
	t.Helper()
	r, err := request.Parse(words)
	if err != nil {
		t.Fatal(err)
	}
	return r.Features()
}

// TestLeasedNICs: a request inside of a lease gets only NICs of that lease.
func TestLeasedNICs(t *testing.T) {
	nics := []gpu.NIC{{Name: "mlx5_0"}, {Name: "mlx5_1", PCI: "0000:01:00.0"}}
	got := leasedNICs(nics, []gpu.Device{{UUID: "GPU-a"}, nics[1].Device(true)})
	if len(got) != 1 || got[0].Name != "mlx5_1" || nics[0].Name != "mlx5_0" {
		t.Errorf("got %v", got)
	}
}
