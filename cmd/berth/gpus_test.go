package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
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

func held(id string, live bool, since time.Time, devices ...gpu.Device) ledger.Status {
	return ledger.Status{Live: live, Lease: ledger.Lease{
		ID: id, State: ledger.Bound, Devices: devices, Request: "1", Since: since,
		Owner: ledger.Owner{Door: "run", Name: "trainer", UID: 0},
	}}
}

func TestSurvey(t *testing.T) {
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
		{"a GPU", []ledger.Status{held("1", true, now, devices["GPU-a"])}, "0 leased, 1 sliced, 1:0 free, 1:1 free, 2 lost, 3 sliced"},
		{"a slice", []ledger.Status{held("1", true, now, devices["MIG-b1"])}, "0 free, 1 sliced, 1:0 free, 1:1 leased, 2 lost, 3 sliced"},
		{"a GPU with its slices", []ledger.Status{held("1", true, now, devices["GPU-b"])}, "0 free, 1 leased, 1:0 leased, 1:1 leased, 2 lost, 3 sliced"},
		{"a lost one", []ledger.Status{held("1", true, now, inv.GPUs[2].Device())}, "0 free, 1 sliced, 1:0 free, 1:1 free, 2 lost, 3 sliced"},
		{"the dead", []ledger.Status{held("1", false, now, devices["GPU-a"])}, "0 free, 1 sliced, 1:0 free, 1:1 free, 2 lost, 3 sliced"},
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

func TestPrintGPUs(t *testing.T) {
	inv := inventory()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	view := ledger.View{Leases: []ledger.Status{
		held("0123456789ab", true, now.Add(-90*time.Minute), inv.GPUs[0].Device()),
		held("123456789abc", true, now.Add(-5*time.Second), inv.GPUs[1].SliceDevice(inv.GPUs[1].Slices[1])),
	}}
	var b strings.Builder
	if err := surveyNode(inv, view).print(&b, now); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/gpus.txt", b.String())
}

func TestPrintLeases(t *testing.T) {
	inv := inventory()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	gone := held("123456789abc", false, now.Add(-50*time.Hour), inv.GPUs[3].Device())
	gone.Note = "init (process 7) has ended and its cgroup is empty"
	lost := held("23456789abcd", true, now.Add(-time.Minute), inv.GPUs[2].Device())
	lost.Note, lost.State, lost.Owner.UID = "GPU 2 (GPU-c) is lost: GPU is lost", ledger.Reserved, 4000000000
	view := ledger.View{
		Leases: []ledger.Status{held("0123456789ab", true, now.Add(-90*time.Minute), inv.GPUs[0].Device(), inv.GPUs[3].Device()), gone, lost},
		Line:   []ledger.Waiter{{ID: "3456789abcde", Request: "a100:2", Owner: ledger.Owner{Door: "alloc", Name: "python"}, Since: now.Add(-time.Second)}},
	}
	var b strings.Builder
	if err := printLeases(&b, view, now); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/leases.txt", b.String())
	b.Reset()
	if err := printLeases(&b, ledger.View{}, now); err != nil {
		t.Fatal(err)
	}
	if b.String() != "nothing is leased, and nobody waits\n" {
		t.Errorf("an empty ledger is shown as %q", b.String())
	}
}

// What the parts of a gang have is listed as one lease is.
func TestIndexes(t *testing.T) {
	device := func(uuid, index string) gpu.Device { return gpu.Device{UUID: uuid, Index: index} }
	got := joinIndexes([]gpu.Device{
		device("GPU-a", "0"), device("HCA-b", "mlx5_1"), device("HCA-a", "mlx5_0"),
		device("MIG-a", "1:0"), device("HCA-a", "mlx5_0"), device("v/c=a", "v/c=a"), device("HCA-c", "mlx5_2"),
	})
	if want := "0,1:0,v/c=a,mlx5_1,mlx5_0,mlx5_2"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPick(t *testing.T) {
	view := ledger.View{Leases: []ledger.Status{held("aa11", true, time.Time{}), held("aa22", true, time.Time{}), held("bb33", false, time.Time{})}}
	for prefix, want := range map[string]string{
		"aa11": "aa11", "aa1": "aa11", "b": "bb33", "bb33": "bb33",
		"a": `release "a": 2 leases begin so; give more of the id`, "": `release "": no such lease`, "cc": `release "cc": no such lease`,
	} {
		l, err := pickLease(view, prefix)
		got := l.ID
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("pick %q: %s, want %s", prefix, got, want)
		}
	}
}
