package faults

import (
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
	"github.com/berth-gpu/berth/test/simnode/sim"
)

// A GPU is cut into MIG instances while berth discovers: the next discovery of the timer finds what
// that one missed.
func TestMIGChangesMeanwhile(t *testing.T) {
	s := startGPUServer(t, "dgx-h100")
	t.Cleanup(func() {
		s.change(t, "mig", "0", "off")
		s.Do(t, s.Berth, "discover")
	})
	for round := range 10 {
		layout, want := "1g.10gb,1g.10gb", 2
		if round%2 == 1 {
			layout, want = "off", 0
		}
		changed := make(chan error)
		go func() { changed <- sim.ControlNode(s.State.ID, "mig", "0", layout) }()
		for changing := true; changing; {
			select {
			case err := <-changed:
				rig.Must(t, err)
				changing = false
			default:
				s.berth(t, "discover", "--if-stale", "--quiet") // it may find the driver half changed
			}
		}
		s.Do(t, s.Berth, "discover", "--if-stale", "--quiet")
		got := 0
		for _, g := range s.gpus(t) {
			if strings.HasPrefix(g.UUID, "MIG-") {
				got++
			}
		}
		if got != want {
			t.Fatalf("after MIG layout %s, berth gpus lists %d slices, want %d", layout, got, want)
		}
	}
}
