package node

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/cmd/berth/verbtest"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/probe"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// inventory is a node with a GPU of each kind: whole, in slices, lost, and in MIG
// mode without a slice.
func inventory() gpu.Inventory {
	slice := func(uuid, profile string, index int) gpu.Slice {
		return gpu.Slice{UUID: uuid, Profile: profile, Index: index, Memory: 10 << 30}
	}
	return gpu.Inventory{
		Hostname: "node1", Driver: gpu.Driver{Version: "550.163.01", CUDA: "12.4"}, NVSwitches: 1,
		GPUs: []gpu.GPU{
			{UUID: "GPU-a", Index: 0, Model: "NVIDIA A100", Memory: 80 << 30, NUMA: 0, PCI: "0000:01:00.0"},
			{
				UUID: "GPU-b", Index: 1, Minor: 1, Model: "NVIDIA A100", Memory: 80 << 30, NUMA: 1, PCI: "0000:02:00.0", MIG: true,
				Slices: []gpu.Slice{slice("MIG-b0", "1g.10gb", 0), slice("MIG-b1", "1g.10gb", 1)},
			},
			{UUID: "GPU-c", Index: 2, Minor: 2, Model: "NVIDIA A100", NUMA: -1, PCI: "0000:03:00.0", Lost: "GPU is lost"},
			{UUID: "GPU-d", Index: 3, Minor: 3, Model: "NVIDIA A100", Memory: 80 << 30, NUMA: 1, PCI: "0000:04:00.0", MIG: true},
		},
		NICs: []gpu.NIC{{Name: "mlx5_0", Near: []gpu.Path{gpu.PathPIX, gpu.PathSYS, gpu.PathSYS, gpu.PathSYS}}, {Name: "mlx5_1", Near: []gpu.Path{gpu.PathPIX, gpu.PathPHB, gpu.PathSYS, gpu.PathSYS}}},
	}
}

func newLeaseStatus(id string, live bool, since time.Time, devices ...gpu.Device) ledger.Status {
	return ledger.Status{Live: live, Lease: ledger.Lease{
		ID: id, State: ledger.Bound, Devices: devices, Request: "1", Since: since,
		Owner: ledger.Owner{EntryPoint: "run", Name: "trainer", UID: 0},
	}}
}

func TestSurveyNode(t *testing.T) {
	inv, now := inventory(), time.Now()
	devices := map[string]gpu.Device{}
	for _, d := range inv.Devices() {
		devices[d.UUID] = d
	}
	for _, c := range []struct {
		name   string
		leases []ledger.Status
		want   string
	}{
		{"nobody", nil, "0 free, 1 sliced, 1:0 free, 1:1 free, 2 lost, 3 sliced"},
		{"a GPU", []ledger.Status{newLeaseStatus("1", true, now, devices["GPU-a"])}, "0 leased, 1 sliced, 1:0 free, 1:1 free, 2 lost, 3 sliced"},
		{"a slice", []ledger.Status{newLeaseStatus("1", true, now, devices["MIG-b1"])}, "0 free, 1 sliced, 1:0 free, 1:1 leased, 2 lost, 3 sliced"},
		{"a GPU with its slices", []ledger.Status{newLeaseStatus("1", true, now, devices["GPU-b"])}, "0 free, 1 leased, 1:0 leased, 1:1 leased, 2 lost, 3 sliced"},
		{"a lost one", []ledger.Status{newLeaseStatus("1", true, now, inv.GPUs[2].Device())}, "0 free, 1 sliced, 1:0 free, 1:1 free, 2 lost, 3 sliced"},
		{"the dead", []ledger.Status{newLeaseStatus("1", false, now, devices["GPU-a"])}, "0 free, 1 sliced, 1:0 free, 1:1 free, 2 lost, 3 sliced"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, d := range surveyNode(inv, ledger.View{Leases: c.leases}).Devices {
				got = append(got, d.Index+" "+d.State)
				if (d.Lease != nil) != (d.State == "leased") && d.State != "lost" {
					t.Errorf("%s is %s, and its lease is %v", d.Index, d.State, d.Lease)
				}
			}
			if diff := cmp.Diff(c.want, strings.Join(got, ", ")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A device that NVML calls lost is lost before a discovery has found it, also if it is leased. Other errors change no state.
func TestLostSinceDiscovery(t *testing.T) {
	inv := inventory()
	seen := surveyNode(inv, ledger.View{Leases: []ledger.Status{newLeaseStatus("1", true, time.Now(), inv.GPUs[0].Device())}})
	seen.setUse(probe.Use{UUID: "GPU-a", Error: "GPU is lost", Lost: true})
	seen.setUse(probe.Use{UUID: "MIG-b0", Error: "GPU is lost", Lost: true})
	seen.setUse(probe.Use{UUID: "MIG-b1", Error: "Unknown Error"})
	seen.addProcesses(map[string][]gpu.Process{"MIG-b0": {{PID: 4711, Name: "python", User: "alice"}}})
	var got []string
	for _, d := range seen.Devices {
		got = append(got, d.Index+" "+d.State+" "+d.Lost)
	}
	want := []string{"0 lost GPU is lost", "1 sliced ", "1:0 lost GPU is lost", "1:1 free ", "2 lost GPU is lost", "3 sliced "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if d := seen.Devices[0]; d.Lease == nil {
		t.Error("the lost GPU isn't shown with its lease")
	}
}

func TestPrintGPUs(t *testing.T) {
	inv := inventory()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	view := ledger.View{Leases: []ledger.Status{
		newLeaseStatus("0123456789ab", true, now.Add(-90*time.Minute), inv.GPUs[0].Device()),
		newLeaseStatus("123456789abc", true, now.Add(-5*time.Second), inv.GPUs[1].SliceDevice(inv.GPUs[1].Slices[1])),
	}}
	var b strings.Builder
	seen := surveyNode(inv, view)
	half, busy := uint64(40<<30), 97
	seen.setUse(probe.Use{UUID: "GPU-a", Memory: half, Total: 80 << 30, Busy: &busy})
	seen.setUse(probe.Use{UUID: "MIG-b1", Total: 10 << 30})
	seen.setUse(probe.Use{UUID: "MIG-b0", Total: 10 << 30, Error: "GPU is lost"})
	seen.addProcesses(map[string][]gpu.Process{"MIG-b0": {{PID: 4711, Name: "python", User: "alice"}, {PID: 4712, Name: "python", User: "bob"}}})
	for _, form := range []struct {
		golden string
		full   bool
		width  int
	}{{"testdata/gpus.txt", false, 0}, {"testdata/gpus_80.txt", false, 80}, {"testdata/gpus_full.txt", true, 80}} {
		b.Reset()
		if err := seen.print(&b, now, form.full, form.width); err != nil {
			t.Fatal(err)
		}
		verbtest.CompareGolden(t, form.golden, b.String())
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(line) - 1; !form.full && form.width > 0 && n > form.width {
				t.Errorf("a line of %d columns: %s", n, line)
			}
		}
	}
}
