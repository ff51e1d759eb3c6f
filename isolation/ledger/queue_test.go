package ledger

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
)

// Devices that processes without a lease use aren't granted, nor are GPUs in the place of leased
// ones.
func TestTurnWithoutLeases(t *testing.T) {
	inv := node()
	was := inv.GPUs[1].Device()
	inv.GPUs[1].UUID = "GPU-in-its-place"
	inv.Occupied = []gpu.Occupied{{Device: inv.GPUs[0].Device()}, {Device: inv.GPUs[6].SliceDevice(inv.GPUs[6].Slices[0])}}
	for request, want := range map[string]string{"2": "2 3", "1g.10gb:6": "6:1 6:2 6:3 6:4 6:5 6:6"} {
		got, err := matchInTurn(inv, []gpu.Device{was}, nil, parseRequest(t, request))
		var indexes []string
		for _, d := range got {
			indexes = append(indexes, d.Index)
		}
		if all := strings.Join(indexes, " "); err != nil || all != want {
			t.Errorf("%s: %s, %v, want %s", request, all, err, want)
		}
	}
	for _, request := range []string{"device=0", "device=1", "6", "device=6", "device=6:0"} {
		if got, err := matchInTurn(inv, []gpu.Device{was}, nil, parseRequest(t, request)); !errors.Is(err, ErrBusy) {
			t.Errorf("%s: %v, %v", request, got, err)
		}
	}
}

func TestTurn(t *testing.T) {
	inv := node() // GPUs 0 to 5, and 6 and 7 in seven slices each
	inv.GPUs[0].Model, inv.GPUs[1].Model = "NVIDIA L40S", "NVIDIA L40S"
	for _, tt := range []struct {
		name    string
		taken   string
		ahead   []string
		request string
		want    string // indexes of the devices that are granted
		busy    BusyError
	}{
		{"empty queue", "", nil, "2", "0 1", BusyError{}},
		{"all taken", "all", nil, "1", "", BusyError{Request: "1", Wanted: 1, Free: 0, Total: 6}},
		{"request ahead that can be granted", "", []string{"2"}, "2", "2 3", BusyError{}},
		{"request ahead that can't be granted keeps all", "device=0", []string{"6"}, "1", "", BusyError{Request: "1", Wanted: 1, Free: 0, Total: 6, Ahead: 1}},
		{"request ahead for other devices", "device=2", []string{"h100:4"}, "l40s:2", "0 1", BusyError{}},
		{"request ahead for slices", "6:0", []string{"device=6"}, "2", "0 1", BusyError{}},
		{"a GPU is kept although a slice of it is leased", "6:0", []string{"device=6"}, "device=6:1", "", BusyError{Request: "device=6:1", Wanted: 1, Free: 0, Total: 1, Ahead: 1}},
		{"slices elsewhere", "6:0", []string{"device=6"}, "1g.10gb:2", "7:0 7:1", BusyError{}},
		{"a chain: the second keeps what the first leaves", "device=0", []string{"h100:3", "l40s:2"}, "2", "", BusyError{Request: "2", Wanted: 2, Free: 1, Total: 6, Ahead: 2}},
		{"a gang ahead that can be served", "", []string{"1;h100:2"}, "2", "1 4", BusyError{}},
		{"a gang ahead that can't be served keeps all", "device=0", []string{"4;2;1g.10gb"}, "1", "", BusyError{Request: "1", Wanted: 1, Free: 0, Total: 6, Ahead: 1}},
		{"a gang that can't be served", "device=0", nil, "2;4", "", BusyError{Request: "2;4", Wanted: 6, Free: 5, Total: 6}},
		{"a gang that can never be served", "", []string{"4;4"}, "2;4", "0 1 2 3 4 5", BusyError{}},
		{"request ahead that can never be granted", "", []string{"16"}, "6", "0 1 2 3 4 5", BusyError{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var taken []gpu.Device
			if tt.taken != "" {
				var err error
				if taken, err = match.Choose(inv, parseRequest(t, tt.taken), nil); err != nil {
					t.Fatal(err)
				}
			}
			var ahead []request.Request
			for _, a := range tt.ahead {
				ahead = append(ahead, parseRequest(t, a))
			}
			got, err := matchInTurn(inv, taken, ahead, parseRequest(t, tt.request))
			var busy BusyError
			if b := (*BusyError)(nil); errors.As(err, &b) {
				busy = *b
			} else if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.busy, busy); diff != "" {
				t.Error(diff)
			}
			names := ""
			for i, d := range got {
				if i > 0 {
					names += " "
				}
				names += d.Index
			}
			if names != tt.want {
				t.Errorf("got %q, want %q", names, tt.want)
			}
		})
	}
}

// Shared NICs delay no request; exclusive NICs are waited for like GPUs.
func TestTurnOfNICs(t *testing.T) {
	shared := node()
	for i := range 2 {
		nic := gpu.NIC{Name: fmt.Sprintf("mlx5_%d", i), Ports: []gpu.Port{{State: "ACTIVE"}}}
		for g := range shared.GPUs {
			nic.Near = append(nic.Near, map[bool]gpu.Path{true: gpu.PathPIX, false: gpu.PathSYS}[g/4 == i])
		}
		shared.NICs = append(shared.NICs, nic)
	}
	alone := shared
	alone.ExclusiveNICs = true
	for _, tt := range []struct {
		name    string
		inv     gpu.Inventory
		taken   string
		ahead   []string
		request string
		want    string
		err     error
	}{
		{"shared with a holder", shared, "device=0,nics=auto", nil, "device=1,nics=auto", "1 mlx5_0", nil},
		{"shared with one ahead", shared, "device=0", []string{"device=0,nics=auto"}, "device=1,nics=auto", "1 mlx5_0", nil},
		{"GPUs that have a free one", alone, "device=0,nics=auto", nil, "1,nics=auto", "4 mlx5_1", nil},
		{"none is free", alone, "0,4,nics=auto", nil, "1,nics=auto", "", ErrBusy},
		{"request ahead that can be granted", alone, "", []string{"nics=1"}, "nics=1", "mlx5_1", nil},
		{"request ahead that can't be granted keeps all", alone, "nics=mlx5_0", []string{"nics=2"}, "nics=1", "", ErrBusy},
		{"request ahead for other NICs", alone, "nics=mlx5_0", []string{"device=0,nics=auto"}, "device=4,nics=auto", "4 mlx5_1", nil},
		{"GPUs alone", alone, "nics=2", []string{"device=0,nics=1"}, "device=1", "1", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var taken []gpu.Device
			if tt.taken != "" {
				var err error
				if taken, err = match.Choose(tt.inv, parseRequest(t, tt.taken), nil); err != nil {
					t.Fatal(err)
				}
			}
			var ahead []request.Request
			for _, a := range tt.ahead {
				ahead = append(ahead, parseRequest(t, a))
			}
			got, err := matchInTurn(tt.inv, taken, ahead, parseRequest(t, tt.request))
			var names []string
			for _, d := range got {
				names = append(names, d.Index)
			}
			if text := strings.Join(names, " "); text != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("got %q, %v, want %q, %v", text, err, tt.want, tt.err)
			}
		})
	}
}

// A leased slice that is gone keeps its whole GPU: new slices of that GPU may use the same
// hardware.
func TestGoneSliceKeepsItsGPU(t *testing.T) {
	l := fresh(t)
	old := node()
	a := ask(t, "6:0")
	mustAcquire(t, l, a)
	now := node()
	now.GPUs[6].Slices = []gpu.Slice{{UUID: "MIG-new", Index: 0, Profile: "4g.40gb", GI: 1, Memory: 40 << 30}}
	a = ask(t, "4g.40gb")
	a.Inventory = now
	var busy *BusyError
	if _, err := l.Acquire(t.Context(), a); !errors.As(err, &busy) || len(busy.Holders) != 1 {
		t.Errorf("a slice in the place of a leased one: %v", err)
	}
	a = ask(t, "1g.10gb")
	a.Inventory = now
	if got := mustAcquire(t, l, a); got.Devices[0].Parent != old.GPUs[7].UUID {
		t.Errorf("got %+v, want a slice of GPU 7", got.Devices)
	}
}

func TestBusyError(t *testing.T) {
	held := func(index, entryPoint, name, id string) Lease {
		return Lease{
			Devices: []gpu.Device{{Index: index}, {Index: index + ":1"}}, Since: sample().leases[0].v.Since,
			Owner: Owner{EntryPoint: entryPoint, Name: name, Container: id, Process: Process{PID: 12}},
		}
	}
	for _, tt := range []struct {
		name string
		err  BusyError
		want string
	}{
		{"plain", BusyError{Request: "2", Wanted: 2, Free: 1, Total: 8}, "2: 2 asked, 1 of 8 free"},
		{
			"holders and line",
			BusyError{Request: "h100:2", Wanted: 2, Total: 8, Ahead: 3, Holders: []Lease{
				held("0", "docker", "web", "4f0c12345678abcd"), held("1", "run", "", "job-1"), held("2", "run", "x", ""),
				held("3", "alloc", "", ""), held("4", "run", "y", ""), held("5", "run", "z", ""),
			}},
			"h100:2: 2 asked, 0 of 8 free; held: GPU 0,0:1 by docker web (4f0c12345678) since 2026-01-02 03:04, " +
				"GPU 1,1:1 by run job-1 since 2026-01-02 03:04, GPU 2,2:1 by run x since 2026-01-02 03:04, " +
				"GPU 3,3:1 by alloc, process 12 since 2026-01-02 03:04 and 2 more; 3 ahead in the queue",
		},
		{"NICs", BusyError{Request: "1", Wanted: 1, Total: 1, Holders: []Lease{{
			Devices: []gpu.Device{gpu.NIC{Name: "mlx5_0"}.Device(false), {Index: "0"}}, Since: sample().leases[0].v.Since, Owner: Owner{EntryPoint: "run", Name: "x"},
		}}}, "1: 1 asked, 0 of 1 free; held: GPU 0, NIC mlx5_0 by run x since 2026-01-02 03:04"},
		{
			"holders whose age isn't shown",
			BusyError{Request: "1", Wanted: 1, Total: 1, Holders: []Lease{{Devices: []gpu.Device{{Index: "0"}}, Owner: Owner{UID: -1}}}},
			"1: 1 asked, 0 of 1 free; held: GPU 0 by others",
		},
		{"waited", BusyError{Request: "1", Wanted: 1, Total: 1, Waited: 1499e6}, "1: 1 asked, 0 of 1 free; waited 1.5s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.err.Error(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}
