package faults

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
	"github.com/berth-gpu/berth/test/simnode/sim"
)

// gpuServer is a server whose GPUs a test breaks. The tests that share one put back what they
// have changed.
type gpuServer struct{ *rig.Node }

func startGPUServer(t *testing.T, profile string) gpuServer {
	t.Helper()
	return gpuServer{shared.Once(t, "GPUs of "+profile, func() (*rig.Node, error) { return shared.Start(profile, "v2") })}
}

// change changes the simulated hardware: see sim.Actions.
func (s gpuServer) change(t *testing.T, words ...string) {
	t.Helper()
	rig.Must(t, sim.ControlNode(s.State.ID, words...))
}

// berth runs a verb to its end.
func (s gpuServer) berth(t *testing.T, words ...string) rig.Said {
	t.Helper()
	return s.Run(t, s.Command(s.Berth, words...))
}

// fails expects that a verb ends with this code and a line on stderr with all of these words.
func (s gpuServer) fails(t *testing.T, verb []string, code int, words ...string) {
	t.Helper()
	got := s.berth(t, verb...)
	if got.Code != code || strings.Count(got.Err, "\n") != 1 {
		t.Errorf("berth %q: %+v, want exit code %d and one line", verb, got, code)
	}
	for _, word := range words {
		if !strings.Contains(got.Err, word) {
			t.Errorf("berth %q: %q, want %q in it", verb, got.Err, word)
		}
	}
}

// shownGPU is what the tests need of a device in berth gpus --json.
type shownGPU struct {
	UUID, State, Lost, PCI string
}

func (s gpuServer) gpus(t *testing.T) (all []shownGPU) {
	t.Helper()
	var shown struct{ Devices []shownGPU }
	rig.Must(t, json.Unmarshal([]byte(s.Do(t, s.Berth, "gpus", "--json")), &shown))
	return shown.Devices
}

// detach starts a task that lives until the test ends.
func (s gpuServer) detach(t *testing.T, name, gpus string) {
	t.Helper()
	s.Do(t, s.Berth, "run", "-d", "--name", name, "--gpus", gpus, rig.ImagePath(t, "busybox"), "sleep", "1000")
	t.Cleanup(func() { s.berth(t, "rm", "-f", name) })
}

// A GPU was replaced while a container held the one before it. The container's device rules let
// it open the node, so the new GPU isn't leased before the container has ended.
func TestReplacedGPU(t *testing.T) {
	s := startGPUServer(t, "l40s-pcie")
	s.detach(t, "holder", "device=2")
	s.change(t, "replace", "2")
	s.Do(t, s.Berth, "discover")

	uuid := s.gpus(t)[2].UUID
	if leases := s.Leases(t); len(leases) != 1 || leases[0].Devices[0].UUID == uuid {
		t.Fatalf("the GPU wasn't replaced: %+v has UUID %s", leases, uuid)
	}
	for _, request := range []string{uuid, "device=2", "4"} {
		s.fails(t, []string{"alloc", request, "--", "true"}, 75, "held: GPU 2 by run holder")
	}
	s.Do(t, s.Berth, "alloc", "3", "--", "true")
	if g := s.gpus(t)[2]; g.State != "leased" {
		t.Errorf("berth gpus says %+v", g)
	}
	s.Do(t, s.Berth, "rm", "-f", "holder")
	s.Do(t, s.Berth, "alloc", "4", "--", "true")
}
