package faults

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// A GPU that fell off the bus is lost from then on, without a call of the driver's library, which
// hangs here.
func TestGPUFallsOffTheBus(t *testing.T) {
	s := startGPUServer(t, "l40s-pcie")
	s.detach(t, "holder", "device=1")
	pci := s.gpus(t)[1].PCI
	s.change(t, "drop", "1")
	s.change(t, "drop", "3")
	s.change(t, "hang", "nvmlInit")
	t.Cleanup(func() {
		s.change(t, "unhang")
		s.change(t, "restore", "1")
		s.change(t, "restore", "3")
		s.Do(t, s.Berth, "discover")
	})

	why := "fell off the PCI bus: the configuration space of "
	for i, g := range s.gpus(t) {
		if lost := i == 1 || i == 3; lost != (g.State == "lost") || lost != strings.HasPrefix(g.Lost, why) {
			t.Errorf("berth gpus says of GPU %d: %+v", i, g)
		}
	}
	s.fails(t, []string{"alloc", "device=3", "--", "true"}, 125, "3 is lost", why)
	s.fails(t, []string{"alloc", "3", "--", "true"}, 125, "node has 2 GPUs (2 more lost), 3 asked")
	s.Do(t, s.Berth, "alloc", "2", "--", "true")

	for _, verb := range [][]string{{"leases"}, {"inspect", "holder"}} {
		if out := s.Do(t, s.Berth, verb...); !strings.Contains(out, "is lost: "+why+pci) {
			t.Errorf("berth %q doesn't say that the GPU is lost: %s", verb, out)
		}
	}
	if out := s.Do(t, s.Berth, "ps"); !strings.Contains(out, "1 (1 lost)") {
		t.Errorf("berth ps doesn't say that the GPU is lost: %s", out)
	}
	if f := s.findings(t, "snapshot.lost"); len(f) != 2 || !strings.Contains(f[0].Text, "GPU 1 ("+pci+") is lost") {
		t.Errorf("doctor: %+v", f)
	}

	s.change(t, "unhang")
	s.Do(t, s.Berth, "discover", "--if-stale") // as the timer does
	s.told(t, "lost", "GPU 1 ")
	s.change(t, "restore", "3")
	s.Do(t, s.Berth, "discover", "--if-stale")
	if g := s.gpus(t); g[3].State != "free" || g[1].State != "lost" {
		t.Errorf("GPU 3 is back, and berth gpus says %+v", g)
	}
}

// The driver says in the kernel's log that a GPU has fallen off the bus (Xid 79), and its PCI
// configuration can be read again.
func TestXidOffTheBus(t *testing.T) {
	s := startGPUServer(t, "l40s-pcie")
	s.detach(t, "holder", "device=0")
	log := s.Path("/dev/kmsg")
	rig.Must(t, os.Remove(log)) // the machine's own
	rig.Must(t, os.WriteFile(log, nil, 0o600))
	s.Do(t, s.Berth, "discover")
	pci := s.gpus(t)[0].PCI
	record := "4,4711,20,-;NVRM: Xid (PCI:" + strings.TrimSuffix(pci, ".0") + "): 79, GPU has fallen off the bus.\n"
	rig.Must(t, os.WriteFile(log, []byte("13,4712,20,-;NVRM: Xid (PCI:"+pci+"): 79, written by a program\n"), 0o600))
	s.Do(t, s.Berth, "discover", "--if-stale")
	if g := s.gpus(t)[0]; g.State != "leased" {
		t.Errorf("a program's record counts: %+v", g)
	}
	rig.Must(t, os.WriteFile(log, []byte(record), 0o600))
	if f := s.findings(t, "snapshot.lost"); len(f) != 1 || !strings.Contains(f[0].Text, "by the kernel's log") {
		t.Errorf("doctor: %+v", f)
	}
	s.change(t, "fail", "nvmlInit", "999") // NVML is of no help
	if said := s.berth(t, "discover", "--if-stale"); said.Code == 0 {
		t.Errorf("NVML's failure isn't reported: %+v", said)
	}
	s.change(t, "unfail")
	for range 2 { // the next runs of the timer
		s.Do(t, s.Berth, "discover", "--if-stale")
		if g := s.gpus(t)[0]; g.State != "lost" || !strings.Contains(g.Lost, "Xid 79") {
			t.Errorf("berth gpus says %+v", g)
		}
	}
	for _, verb := range []string{"drop", "restore"} { // another GPU, for which the snapshot is renewed
		s.change(t, verb, "2")
		s.Do(t, s.Berth, "discover", "--if-stale")
		if g := s.gpus(t)[0]; g.State != "lost" || !strings.Contains(g.Lost, "Xid 79") {
			t.Errorf("after %s of another GPU berth gpus says %+v", verb, g)
		}
	}
	s.told(t, "lost", "GPU 0 ")
	s.Do(t, s.Berth, "discover") // it was reset
	if g := s.gpus(t)[0]; g.State != "leased" || g.Lost != "" {
		t.Errorf("after a discovery berth gpus says %+v", g)
	}
}

// finding is what the tests need of berth doctor --json.
type finding struct{ ID, State, Text string }

// findings returns what doctor finds under an id.
func (s gpuServer) findings(t *testing.T, id string) (found []finding) {
	t.Helper()
	said := s.berth(t, "doctor", "--json") // fails here for other reasons
	var all []finding
	rig.Must(t, json.Unmarshal([]byte(said.Out), &all))
	for _, f := range all {
		if f.ID == id {
			found = append(found, f)
		}
	}
	return found
}

// told expects an event of that name about the holder, with these words.
func (s gpuServer) told(t *testing.T, name, words string) {
	t.Helper()
	log, err := os.ReadFile(s.Path("/var/lib/berth/events.log"))
	rig.Must(t, err)
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, `"event":"`+name+`"`) && strings.Contains(line, words) && strings.Contains(line, `"holder"`) {
			return
		}
	}
	t.Errorf("no event %s with %q in events.log", name, words)
}
