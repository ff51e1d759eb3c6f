package match

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/gpu"
)

// genNICs draws NICs beside the GPUs of a node.
func genNICs(t *rapid.T, inv *gpu.Inventory, most int) {
	paths := rapid.SampledFrom([]gpu.Path{gpu.PathPIX, gpu.PathPXB, gpu.PathPHB, gpu.PathNODE, gpu.PathSYS, ""})
	for i := range rapid.IntRange(1, most).Draw(t, "NICs") {
		n := gpu.NIC{Name: fmt.Sprintf("mlx5_%d", i), Ports: []gpu.Port{{State: rapid.SampledFrom([]string{"ACTIVE", "ACTIVE", "DOWN"}).Draw(t, "state")}}}
		for range inv.GPUs {
			n.Near = append(n.Near, paths.Draw(t, "near"))
		}
		inv.NICs = append(inv.NICs, n)
	}
}

// A count of NICs gets the best set by its definition.
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
			if len(set) == n && (best == nil || cost(set).compareCost(cost(best)) < 0 ||
				cost(set).compareCost(cost(best)) == 0 && slices.Compare(set, best) < 0) {
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
		if rough := s.searchGreedily(); len(rough) != n || len(slices.Compact(rough)) != n || !slices.IsSorted(rough) {
			t.Fatalf("%v isn't a set of %d", rough, n)
		}
	})
}

// auto gives all active NICs near one of the GPUs, and at least one; of exclusive NICs only free
// ones. A request has to wait for a NIC only if no choice of GPUs has a free one.
func TestAutoNICs(t *testing.T) {
	granted, busy := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		inv := genNode(5).Draw(t, "node")
		genNICs(t, &inv, 4)
		inv.ExclusiveNICs = rapid.Bool().Draw(t, "exclusive")
		var taken []gpu.Device
		for _, n := range inv.NICs {
			if rapid.Bool().Draw(t, "taken") {
				taken = append(taken, n.Device(!inv.ExclusiveNICs))
			}
		}
		n := rapid.IntRange(1, 2).Draw(t, "n")
		plain, never := Choose(inv, mustParseRapid(t, fmt.Sprint(n)), nil)
		got, err := Choose(inv, mustParseRapid(t, fmt.Sprintf("%d,nics=auto", n)), taken)
		if never != nil {
			return
		}
		isFree := func(d gpu.Device) bool { return !slices.ContainsFunc(taken, d.Conflicts) }
		choices := func(gpus []int) (near, free, active int) {
			for _, nic := range inv.NICs {
				if !nic.Active() {
					continue
				}
				active++
				if slices.ContainsFunc(gpus, func(g int) bool { return distanceTo(nic, g) <= 1 }) {
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
		gpus := (node{inv}).gpuPlaces(got[:n])
		near, free, _ := choices(gpus)
		nics := got[n:]
		if !inv.ExclusiveNICs && !slices.Equal(got[:n], plain) || len(nics) == 0 || !slices.ContainsFunc(nics, isFree) ||
			near > 0 && len(nics) != free || near == 0 && len(nics) > n {
			t.Fatalf("got %v", indexesOf(got))
		}
		for _, d := range nics {
			nic, ok := inv.NIC(d)
			if !ok || !nic.Active() || !isFree(d) || near > 0 && !slices.ContainsFunc(gpus, func(g int) bool { return distanceTo(nic, g) <= 1 }) {
				t.Fatalf("got %v", indexesOf(got))
			}
		}
	})
	if granted == 0 || busy == 0 {
		t.Errorf("%d granted, %d busy: the test shows nothing", granted, busy)
	}
}

// The parts of a divided lease have the lease's devices, and each part has as many NICs as it would
// have alone, whatever other leases hold and whatever the links' states are since.
func TestDivideNICs(t *testing.T) {
	divided := 0
	rapid.Check(t, func(t *rapid.T) {
		inv := genNode(6).Draw(t, "node")
		genNICs(t, &inv, 5)
		inv.ExclusiveNICs = rapid.Bool().Draw(t, "exclusive")
		var taken []gpu.Device
		for _, n := range inv.NICs {
			if rapid.IntRange(0, 2).Draw(t, "taken") == 0 {
				taken = append(taken, n.Device(!inv.ExclusiveNICs))
			}
		}
		var texts []string
		for range rapid.IntRange(2, 4).Draw(t, "parts") {
			words := []string{"1", "1,nics=auto", "2,nics=1", "1,nics=2", "nics=1", "nics=2", "1,nics=mlx5_0", "nics=mlx5_1", "1g.10gb,nics=auto"}
			texts = append(texts, rapid.SampledFrom(words).Draw(t, "part"))
		}
		r := mustParseRapid(t, strings.Join(texts, ";"))
		got, err := Choose(inv, r, taken)
		if err != nil {
			return
		}
		divided++
		now := inv
		now.ExclusiveNICs = rapid.Bool().Draw(t, "exclusive now")
		changed := rapid.Bool().Draw(t, "links change")
		if changed {
			now.NICs = slices.Clone(inv.NICs)
			for i := range now.NICs {
				now.NICs[i].Ports = nil
			}
		}
		shares, err := Divide(now, r, got)
		if err != nil {
			t.Fatal(err)
		}
		var all []gpu.Device
		for i, share := range shares {
			p := r.Parts()[i]
			gpus := slices.DeleteFunc(slices.Clone(share), gpu.Device.IsNIC)
			want, err := (node{inv}).matchNICs(p, node{inv}.gpuPlaces(share), taken, nil)
			if n := len(share) - len(gpus); len(gpus) != p.Count() || err == nil && n != len(want) && (!changed || n == 0) {
				t.Fatalf("%s of %s: %s, %v", p, r, indexesOf(share), err)
			}
			for _, d := range share {
				if !slices.Contains(got, d) {
					t.Fatalf("%s isn't of %s", indexesOf(share), indexesOf(got))
				}
				if !slices.Contains(all, d) {
					all = append(all, d)
				}
			}
		}
		if len(all) != len(got) {
			t.Fatalf("%s of %s", indexesOf(all), indexesOf(got))
		}
	})
	if divided == 0 {
		t.Error("nothing was divided: the test shows nothing")
	}
}
