package guard

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/deviceguard"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// TestHostRules: the guarded nodes, and those that leases of GPUs, slices and adapters open.
func TestHostRules(t *testing.T) {
	root, sys := t.TempDir(), t.TempDir()
	for _, dir := range []string{"/berth/a", "/berth/slice", "/engine/berth-7.8-00000001/c", "/system.slice/dcgm.service", "/nic"} {
		testutil.Must(t, os.MkdirAll(root+dir, 0o755))
	}
	for name, number := range map[string]string{"uverbs0": "231:192", "uverbs1": "231:193"} {
		dir := filepath.Join(sys, "class/infiniband_verbs", name)
		testutil.Must(t, os.MkdirAll(dir, 0o755))
		testutil.Must(t, os.WriteFile(dir+"/dev", []byte(number+"\n"), 0o644))
	}
	inv := gpu.Inventory{
		GPUs: []gpu.GPU{
			{UUID: "GPU-a", Minor: 0, DRI: []gpu.DRINode{{Name: "renderD129", Minor: 129}}},
			{UUID: "GPU-b", Minor: 3, MIG: true, Slices: []gpu.Slice{{UUID: "MIG-1", GIMinor: 21, CIMinor: 22}, {UUID: "MIG-2", GIMinor: 30, CIMinor: 31}}},
		},
		NICs:          []gpu.NIC{{Name: "mlx5_0", Uverbs: "uverbs0"}, {Name: "mlx5_1", Uverbs: "uverbs1"}, {Name: "mlx5_2"}},
		ExclusiveNICs: true,
	}
	majors := map[string]uint32{"nvidia": 195, "nvidia-caps": 236, "drm": 226}
	g := Guard{Host: gpu.Host{Sys: sys}, Cgroups: cgroup.Hierarchy{Version: cgroup.V2, Root: root, Mount: root}}
	leases := []ledger.Lease{
		{Devices: []gpu.Device{inv.GPUs[0].Device()}, Owner: ledger.Owner{Cgroup: "/berth/a"}},
		{Devices: []gpu.Device{inv.GPUs[1].SliceDevice(inv.GPUs[1].Slices[1])}, Owner: ledger.Owner{Cgroup: "/berth/slice"}},
		{Devices: []gpu.Device{inv.GPUs[0].Device()}, Owner: ledger.Owner{Cgroup: "/engine/berth-7.8-00000001/c"}},
		{Devices: []gpu.Device{inv.NICs[1].Device(false)}, Owner: ledger.Owner{Cgroup: "/nic"}},
		{Devices: []gpu.Device{inv.NICs[0].Device(false)}, Owner: ledger.Owner{Cgroup: "/nic"}},
		{Devices: []gpu.Device{inv.GPUs[0].Device()}, Owner: ledger.Owner{Cgroup: "/berth/gone"}},
		{Devices: []gpu.Device{inv.GPUs[0].Device()}},
	}
	r, err := g.HostRules(inv, majors, leases, []string{"/system.slice/dcgm.service", "/system.slice/stopped.service"})
	testutil.Must(t, err)
	for _, n := range []deviceguard.Number{{Major: 195, Minor: deviceguard.AnyMinor}, {Major: 236, Minor: deviceguard.AnyMinor}, {Major: 226, Minor: 129}, {Major: 231, Minor: 192}, {Major: 231, Minor: 193}} {
		if !slices.Contains(r.Guarded, n) {
			t.Errorf("%v isn't guarded", n)
		}
	}
	for minor := uint32(0); minor <= 255; minor++ {
		if open := slices.Contains(r.Open, deviceguard.Number{Major: 195, Minor: minor}); open != (minor > 247) {
			t.Errorf("minor %d is open: %v", minor, open)
		}
	}
	id := func(path string) uint64 {
		id, err := g.Cgroups.ID(path)
		testutil.Must(t, err)
		return id
	}
	for path, want := range map[string]deviceguard.Entry{
		"/berth/a":                   {Kind: deviceguard.Lease, Devices: []deviceguard.Number{{Major: 195}, {Major: 226, Minor: 129}}},
		"/berth/slice":               {Kind: deviceguard.Lease, Devices: []deviceguard.Number{{Major: 195, Minor: 3}, {Major: 236, Minor: 30}, {Major: 236, Minor: 31}}},
		"/engine/berth-7.8-00000001": {Kind: deviceguard.Lease, Devices: []deviceguard.Number{{Major: 195}, {Major: 226, Minor: 129}}},
		"/nic":                       {Kind: deviceguard.Lease, Devices: []deviceguard.Number{{Major: 231, Minor: 193}, {Major: 231, Minor: 192}}},
		"/system.slice/dcgm.service": {Kind: deviceguard.Exempt},
	} {
		got, ok := r.Cgroups[id(path)]
		if !ok || got.Kind != want.Kind || !slices.Equal(got.Devices, want.Devices) {
			t.Errorf("%s has %+v, want %+v", path, got, want)
		}
	}
	if len(r.Cgroups) != 5 {
		t.Errorf("%d cgroups have entries", len(r.Cgroups))
	}
}
