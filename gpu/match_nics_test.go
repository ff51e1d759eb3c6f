package gpu

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// nicNode: eight GPUs in pairs behind a switch, a NIC at each of the four and two more
// for storage, mlx5_4 beside the first host bridge and mlx5_5 without a link. GPU 7 is cut.
func nicNode() Inventory {
	inv := dgxNode()
	for i := range 6 {
		n := NIC{
			Name: fmt.Sprintf("mlx5_%d", i), GUID: fmt.Sprintf("b8ce:f603:00a1:d2f%d", i), PCI: fmt.Sprintf("0000:0%d:00.0", i),
			Ports: []Port{{Number: 1, State: "ACTIVE"}},
		}
		for g := range inv.GPUs {
			switch {
			case i < 4 && g/2 == i:
				n.Near = append(n.Near, PathPXB)
			case i < 4 && g/4 == i/2, i >= 4 && g/4 == i-4:
				n.Near = append(n.Near, PathNODE)
			default:
				n.Near = append(n.Near, PathSYS)
			}
		}
		inv.NICs = append(inv.NICs, n)
	}
	inv.NICs[5].Ports[0].State = "DOWN"
	inv.GPUs[7].MIG = true
	inv.GPUs[7].Slices = []Slice{{UUID: "MIG-a", Profile: "1g.10gb"}, {UUID: "MIG-b", Profile: "1g.10gb", Index: 1}}
	return inv
}

func nicsAt(inv Inventory, names string) []Device {
	var ds []Device
	for _, n := range inv.NICs {
		if slices.Contains(strings.Fields(names), n.Name) {
			ds = append(ds, n.Device(!inv.ExclusiveNICs))
		}
	}
	return ds
}

func indexesOf(ds []Device) string {
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
			flat.NICs[i].Near[g] = PathPHB
		}
	}
	tests := []struct {
		name    string
		inv     Inventory
		request string
		taken   string
		want    string
	}{
		{"beside the GPU", shared, "device=2,nics=auto", "", "2 n1"},
		{"beside each GPU", shared, "0,1,4,nics=auto", "", "0 1 4 n0 n2"},
		{"beside a slice's GPU", shared, "1g.10gb,nics=auto", "", "7:0 n3"},
		{"shared by who comes later", shared, "device=2,nics=auto", "mlx5_1", "2 n1"},
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
			got, err := tt.inv.Match(r, nicsAt(tt.inv, tt.taken))
			if err != nil {
				t.Fatal(err)
			}
			if indexesOf(got) != tt.want {
				t.Errorf("%s with %q taken: %s, want %s", r, tt.taken, indexesOf(got), tt.want)
			}
			could, err := tt.inv.Candidates(r)
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
		inv           Inventory
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
			got, err := tt.inv.Match(r, nicsAt(tt.inv, tt.taken))
			if !errors.Is(err, tt.is) || got != nil || !strings.HasPrefix(err.Error(), tt.line) {
				t.Fatalf("got %v, %v\nwant %s", got, err, tt.line)
			}
			if _, err := tt.inv.Candidates(r); (err == nil) != (tt.is == ErrBusy) {
				t.Errorf("Candidates: %v", err)
			}
		})
	}
}

func TestNICDevice(t *testing.T) {
	tests := []struct {
		nic  NIC
		uuid string
	}{
		{NIC{Name: "mlx5_0", GUID: "b8ce:f603:00a1:d2f4", PCI: "0000:1b:00.0"}, "HCA-b8ce-f603-00a1-d2f4"},
		{NIC{Name: "mlx5_0", PCI: "0000:1b:00.0"}, "HCA-0000:1b:00.0"},
		{NIC{Name: "rxe0"}, "HCA-rxe0"},
	}
	for _, tt := range tests {
		d := tt.nic.Device(true)
		if want := (Device{UUID: tt.uuid, Index: tt.nic.Name, Shared: true}); d != want {
			t.Errorf("got %v, want %v", d, want)
		}
		if !d.IsNIC() || d.CDI() || d.Conflicts(d) || !d.Conflicts(tt.nic.Device(false)) || !tt.nic.Device(false).Conflicts(tt.nic.Device(false)) {
			t.Errorf("%v is taken for something else", d)
		}
		found, ok := Inventory{NICs: []NIC{{Name: "other"}, tt.nic}}.NIC(d)
		if diff := cmp.Diff(tt.nic, found); !ok || diff != "" {
			t.Errorf("not found: %s", diff)
		}
		if _, ok := (Inventory{}).NIC(d); ok {
			t.Error("found where there is none")
		}
	}
}

// genNICs draws NICs beside the GPUs of a node.
func genNICs(t *rapid.T, inv *Inventory, most int) {
	paths := rapid.SampledFrom([]Path{PathPIX, PathPXB, PathPHB, PathNODE, PathSYS, ""})
	for i := range rapid.IntRange(1, most).Draw(t, "NICs") {
		n := NIC{Name: fmt.Sprintf("mlx5_%d", i), Ports: []Port{{State: rapid.SampledFrom([]string{"ACTIVE", "ACTIVE", "DOWN"}).Draw(t, "state")}}}
		for range inv.GPUs {
			n.Near = append(n.Near, paths.Draw(t, "near"))
		}
		inv.NICs = append(inv.NICs, n)
	}
}

// A count of NICs is the best set by its plain definition.
func TestNearestNICsAreNearest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := make([]adapter, rapid.IntRange(1, 7).Draw(t, "NICs"))
		gpus := rapid.IntRange(0, 4).Draw(t, "GPUs")
		for i := range pool {
			pool[i].far = rapid.SliceOfN(rapid.IntRange(0, 5), gpus, gpus).Draw(t, "far")
			pool[i].held = rapid.IntRange(0, 2).Draw(t, "held")
		}
		n := rapid.IntRange(1, len(pool)).Draw(t, "n")
		cost := func(set []int) (c nicCost) {
			for g := range gpus {
				least := farthest
				for _, i := range set {
					least, c.all = min(least, pool[i].far[g]), c.all+pool[i].far[g]
				}
				c.nearest += least
			}
			for _, i := range set {
				c.held += pool[i].held
			}
			return c
		}
		var best []int
		for mask := range 1 << len(pool) {
			var set []int
			for i := range pool {
				if mask>>i&1 == 1 {
					set = append(set, i)
				}
			}
			if len(set) == n && (best == nil || cost(set).compare(cost(best)) < 0 ||
				cost(set).compare(cost(best)) == 0 && slices.Compare(set, best) < 0) {
				best = set
			}
		}
		if got := nearestNICs(pool, n); !slices.Equal(got, best) {
			t.Fatalf("got %v with %v, want %v with %v", got, cost(got), best, cost(best))
		}
		s := nicSearch{pool: pool, n: n, near: make([][]int, n+1)}
		for i := range s.near {
			s.near[i] = slices.Repeat([]int{farthest}, gpus)
		}
		if rough := s.grow(); len(rough) != n || len(slices.Compact(rough)) != n || !slices.IsSorted(rough) {
			t.Fatalf("%v isn't a set of %d", rough, n)
		}
	})
}

// auto gives all active NICs near one of the GPUs, and at least one; of exclusive ones
// those that are free. It makes one wait only where no choice of GPUs has a free NIC.
func TestAutoNICs(t *testing.T) {
	granted, busy := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		inv := genNode(5).Draw(t, "node")
		genNICs(t, &inv, 4)
		inv.ExclusiveNICs = rapid.Bool().Draw(t, "exclusive")
		var taken []Device
		for _, n := range inv.NICs {
			if rapid.Bool().Draw(t, "taken") {
				taken = append(taken, n.Device(!inv.ExclusiveNICs))
			}
		}
		n := rapid.IntRange(1, 2).Draw(t, "n")
		plain, never := inv.Match(mustParseRapid(t, fmt.Sprint(n)), nil)
		got, err := inv.Match(mustParseRapid(t, fmt.Sprintf("%d,nics=auto", n)), taken)
		if never != nil {
			return
		}
		isFree := func(d Device) bool { return !slices.ContainsFunc(taken, d.Conflicts) }
		choices := func(gpus []int) (near, free, active int) {
			for _, nic := range inv.NICs {
				if !nic.Active() {
					continue
				}
				active++
				if slices.ContainsFunc(gpus, func(g int) bool { return nic.near(g) <= 1 }) {
					near, free = near+1, free+b2i(isFree(nic.Device(!inv.ExclusiveNICs)))
				}
			}
			return near, free, active
		}
		if err != nil {
			if _, _, active := choices(nil); (active == 0) != errors.Is(err, ErrTooMany) {
				t.Fatal(err)
			}
			for i, a := range inv.GPUs {
				if near, free, _ := choices([]int{i}); free > 0 && n == 1 && a.Lost == "" && !a.MIG {
					t.Fatalf("%v, though GPU %d has %d of %d", err, i, free, near)
				}
			}
			busy++
			return
		}
		granted++
		gpus := inv.places(got[:n])
		near, free, _ := choices(gpus)
		nics := got[n:]
		if !inv.ExclusiveNICs && !slices.Equal(got[:n], plain) || len(nics) == 0 || !slices.ContainsFunc(nics, isFree) ||
			near > 0 && len(nics) != free || near == 0 && len(nics) > n {
			t.Fatalf("got %v", indexesOf(got))
		}
		for _, d := range nics {
			nic, ok := inv.NIC(d)
			if !ok || !nic.Active() || !isFree(d) || near > 0 && !slices.ContainsFunc(gpus, func(g int) bool { return nic.near(g) <= 1 }) {
				t.Fatalf("got %v", indexesOf(got))
			}
		}
	})
	if granted == 0 || busy == 0 {
		t.Errorf("%d granted, %d busy: the test shows nothing", granted, busy)
	}
}

// What a lease is divided into are its devices, and the NICs that count for each part.
func TestDivideNICs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inv := genNode(6).Draw(t, "node")
		genNICs(t, &inv, 5)
		inv.ExclusiveNICs = rapid.Bool().Draw(t, "exclusive")
		var texts []string
		for range rapid.IntRange(2, 3).Draw(t, "parts") {
			words := []string{"1", "1,nics=auto", "2,nics=1", "1,nics=2", "nics=1", "1,nics=mlx5_0", "1g.10gb,nics=auto"}
			texts = append(texts, rapid.SampledFrom(words).Draw(t, "part"))
		}
		r := mustParseRapid(t, strings.Join(texts, ";"))
		got, err := inv.Match(r, nil)
		if err != nil {
			return
		}
		shares, err := inv.Divide(r, got)
		if err != nil {
			t.Fatal(err)
		}
		var all []Device
		for i, share := range shares {
			p := r.Parts()[i]
			nics, err := inv.matchNICs(p, inv.places(share), nil, nil)
			if n := len(slices.DeleteFunc(slices.Clone(share), Device.IsNIC)); err != nil || len(share)-n != len(nics) || n != p.Count() {
				t.Fatalf("%s: %s, %v", p, indexesOf(share), err)
			}
			for _, d := range share {
				if !slices.Contains(all, d) {
					all = append(all, d)
				}
			}
		}
		if !slices.Equal(all, got) {
			t.Fatalf("%s of %s", indexesOf(all), indexesOf(got))
		}
	})
}
