package match

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
)

// nicNode: eight GPUs in pairs behind a switch each, a NIC at each of the four switches and two
// more for storage, mlx5_4 beside the first host bridge and mlx5_5 without a link. GPU 7 is cut
// into slices.
func nicNode() gpu.Inventory {
	inv := dgxNode()
	for i := range 6 {
		n := gpu.NIC{
			Name: fmt.Sprintf("mlx5_%d", i), GUID: fmt.Sprintf("b8ce:f603:00a1:d2f%d", i), PCI: fmt.Sprintf("0000:0%d:00.0", i),
			Ports: []gpu.Port{{Number: 1, State: "ACTIVE"}},
		}
		for g := range inv.GPUs {
			switch {
			case i < 4 && g/2 == i:
				n.Near = append(n.Near, gpu.PathPXB)
			case i < 4 && g/4 == i/2, i >= 4 && g/4 == i-4:
				n.Near = append(n.Near, gpu.PathNODE)
			default:
				n.Near = append(n.Near, gpu.PathSYS)
			}
		}
		inv.NICs = append(inv.NICs, n)
	}
	inv.NICs[5].Ports[0].State = "DOWN"
	inv.GPUs[7].MIG = true
	inv.GPUs[7].Slices = []gpu.Slice{{UUID: "MIG-a", Profile: "1g.10gb"}, {UUID: "MIG-b", Profile: "1g.10gb", Index: 1}}
	return inv
}

func nicsAt(inv gpu.Inventory, names string) []gpu.Device {
	var ds []gpu.Device
	for _, n := range inv.NICs {
		if slices.Contains(strings.Fields(names), n.Name) {
			ds = append(ds, n.Device(!inv.ExclusiveNICs))
		}
	}
	return ds
}

func indexesOf(ds []gpu.Device) string {
	var all []string
	for _, d := range ds {
		all = append(all, strings.TrimPrefix(d.Index, "mlx5_"))
		if d.IsNIC() {
			all[len(all)-1] = "n" + all[len(all)-1]
		}
	}
	return strings.Join(all, " ")
}

func TestMatchNICs(t *testing.T) {
	shared, alone, far, flat := nicNode(), nicNode(), nicNode(), nicNode()
	alone.ExclusiveNICs = true
	far.NICs = far.NICs[4:]
	for i := range flat.NICs {
		for g := range flat.GPUs {
			flat.NICs[i].Near[g] = gpu.PathPHB
		}
	}
	tests := []struct {
		name    string
		inv     gpu.Inventory
		request string
		taken   string
		want    string
	}{
		{"beside the GPU", shared, "device=2,nics=auto", "", "2 n1"},
		{"beside each GPU", shared, "0,1,4,nics=auto", "", "0 1 4 n0 n2"},
		{"beside a slice's GPU", shared, "1g.10gb,nics=auto", "", "7:0 n3"},
		{"shared with an earlier lease", shared, "device=2,nics=auto", "mlx5_1", "2 n1"},
		{"none near: the nearest that works", far, "device=6,nics=auto", "", "6 n4"},
		{"none near: the nearest", far, "0,1,nics=auto", "", "0 1 n4"},
		{"all alike: one for each GPU", flat, "0,1,nics=auto", "", "0 1 n0 n1"},
		{"all alike: one that few have", flat, "device=0,nics=auto", "mlx5_0", "0 n1"},
		{"the nearest one", shared, "device=5,nics=1", "", "5 n2"},
		{"one, nearest to all", shared, "0,1,2,nics=1", "", "0 1 2 n0"},
		{"no GPU is left far from one", shared, "0,6,nics=2", "", "0 6 n0 n3"},
		{"more than are near", shared, "device=0,nics=3", "", "0 n0 n1 n4"},
		{"by name, far and down as it may be", shared, "device=0,nics=MLX5_5+mlx5_3", "", "0 n3 n5"},
		{"alone", shared, "nics=mlx5_2", "", "n2"},
		{"so many alone", shared, "nics=2", "mlx5_0", "n1 n2"},
		{"with CDI devices", shared, "device=0,v/c=a,nics=1", "", "0 v/c=a n0"},
		{"exclusive: those that are free", alone, "0,2,nics=auto", "mlx5_0", "0 2 n1"},
		{"exclusive: the next one", alone, "device=0,nics=1", "mlx5_0", "0 n1"},
		{"a gang's parts have their own", shared, "device=0,nics=auto;device=6,nics=auto", "", "0 n0 6 n3"},
		{"a gang's NIC is there once", alone, "device=0,nics=auto;device=1,nics=auto", "", "0 n0 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := mustParse(t, tt.request)
			got, err := Choose(tt.inv, r, nicsAt(tt.inv, tt.taken))
			if err != nil {
				t.Fatal(err)
			}
			if indexesOf(got) != tt.want {
				t.Errorf("%s with %q taken: %s, want %s", r, tt.taken, indexesOf(got), tt.want)
			}
			could, err := Candidates(tt.inv, r)
			for _, d := range got {
				if !slices.Contains(could, d) {
					t.Errorf("%v isn't among the candidates %s, %v", d, indexesOf(could), err)
				}
			}
		})
	}
}

func TestMatchNICErrors(t *testing.T) {
	inv, alone, down := nicNode(), nicNode(), nicNode()
	alone.ExclusiveNICs = true
	for i := range down.NICs {
		down.NICs[i].Ports = nil
	}
	tests := []struct {
		name, request string
		inv           gpu.Inventory
		taken         string
		is            error
		line          string
	}{
		{
			"unknown", "1,nics=mlx5_9", inv, "", ErrUnknown,
			"1,nics=mlx5_9: node has no NIC mlx5_9 (did you mean mlx5_0?); it has mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5",
		},
		{"too many", "1,nics=6", inv, "", ErrTooMany, "1,nics=6: node has 5 NICs with an active port (1 more without), 6 asked"},
		{"none works", "1,nics=auto", down, "", ErrTooMany, "1,nics=auto: node has 0 NICs with an active port (6 more without), 1 asked"},
		{"none at all", "1,nics=auto", dgxNode(), "", ErrTooMany, "1,nics=auto: node has 0 NICs with an active port, 1 asked"},
		{"named one is held", "1,nics=mlx5_1", alone, "mlx5_1", ErrBusy, "1,nics=mlx5_1: taken: NIC mlx5_1"},
		{"near one is held", "device=0,nics=auto", alone, "mlx5_0", ErrBusy, "device=0,nics=auto: taken: NIC mlx5_0"},
		{"too few are free", "1,nics=4", alone, "mlx5_0 mlx5_1", ErrBusy, "1,nics=4: 3 of 5 NICs free, 4 asked"},
		{"in a gang", "1;1,nics=mlx5_9", inv, "", ErrUnknown, "1;1,nics=mlx5_9: node has no NIC mlx5_9"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := mustParse(t, tt.request)
			got, err := Choose(tt.inv, r, nicsAt(tt.inv, tt.taken))
			if !errors.Is(err, tt.is) || got != nil || !strings.HasPrefix(err.Error(), tt.line) {
				t.Fatalf("got %v, %v\nwant %s", got, err, tt.line)
			}
			if _, err := Candidates(tt.inv, r); (err == nil) != (tt.is == ErrBusy) {
				t.Errorf("Candidates: %v", err)
			}
		})
	}
}

func TestNICDevice(t *testing.T) {
	tests := []struct {
		nic  gpu.NIC
		uuid string
	}{
		{gpu.NIC{Name: "mlx5_0", GUID: "b8ce:f603:00a1:d2f4", PCI: "0000:1b:00.0"}, "HCA-b8ce-f603-00a1-d2f4"},
		{gpu.NIC{Name: "mlx5_0", PCI: "0000:1b:00.0"}, "HCA-0000:1b:00.0"},
		{gpu.NIC{Name: "rxe0"}, "HCA-rxe0"},
	}
	for _, tt := range tests {
		d := tt.nic.Device(true)
		if want := (gpu.Device{UUID: tt.uuid, Index: tt.nic.Name, Shared: true}); d != want {
			t.Errorf("got %v, want %v", d, want)
		}
		if !d.IsNIC() || d.IsCDI() || d.Conflicts(d) || !d.Conflicts(tt.nic.Device(false)) || !tt.nic.Device(false).Conflicts(tt.nic.Device(false)) {
			t.Errorf("%v is taken for something else", d)
		}
		found, ok := gpu.Inventory{NICs: []gpu.NIC{{Name: "other"}, tt.nic}}.NIC(d)
		if diff := cmp.Diff(tt.nic, found); !ok || diff != "" {
			t.Errorf("not found: %s", diff)
		}
		if _, ok := (gpu.Inventory{}).NIC(d); ok {
			t.Error("found where there is none")
		}
	}
}

func TestFarNICs(t *testing.T) {
	near, far := nicNode(), nicNode()
	far.NICs = far.NICs[4:]
	const note = "no NIC with an active port is near GPU 6: mlx5_4 is the nearest (SYS), too far for GPUDirect RDMA by default"
	for _, tt := range []struct {
		name, request, want string
		inv                 gpu.Inventory
	}{
		{"near", "device=6,nics=auto", "", near},
		{"far", "device=6,nics=auto", note, far},
		{"a part of a gang", "1g.10gb;device=6,nics=auto", note, far},
		{"asked for by count", "device=6,nics=1", "", far},
		{"none", "device=6", "", far},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := mustParse(t, tt.request)
			got, err := Choose(tt.inv, r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if note := DescribeFarNICs(tt.inv, r, got); note != tt.want {
				t.Errorf("got %q, want %q", note, tt.want)
			}
		})
	}
	if note := DescribeFarNICs(far, mustParse(t, "1;1"), nil); note != "" {
		t.Errorf("of other devices: %q", note)
	}
}
