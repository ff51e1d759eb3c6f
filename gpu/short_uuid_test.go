package gpu

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestShortenUUIDs(t *testing.T) {
	for _, c := range []struct {
		name        string
		uuids, want []string
	}{
		{"four digits", []string{"GPU-c41fcb1b-a940", "GPU-f9f55ad7-6ba8"}, []string{"GPU-c41f", "GPU-f9f5"}},
		{"as many as differ", []string{"GPU-c41fcb1b-a940", "GPU-c41fcc1b-a940"}, []string{"GPU-c41fcb", "GPU-c41fcc"}},
		{"each kind for itself", []string{"GPU-c41fcb1b", "MIG-c41f0b1b", "MIG-c41f1b1b"}, []string{"GPU-c41f", "MIG-c41f0", "MIG-c41f1"}},
		{"short ones", []string{"GPU-a", "GPU-ab"}, []string{"GPU-a", "GPU-ab"}},
		{"the same twice", []string{"GPU-c41fcb1b", "GPU-c41fcb1b"}, []string{"GPU-c41f", "GPU-c41f"}},
		{"other names", []string{"LOST-0000:03:00.0", "vendor.example/nic=port0"}, []string{"LOST-0000:03:00.0", "vendor.example/nic=port0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, ShortenUUIDs(c.uuids)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
