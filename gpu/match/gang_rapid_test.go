package match

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// genMixed draws a node of several models, sizes and slices.
func genMixed() *rapid.Generator[gpu.Inventory] {
	return rapid.Custom(func(t *rapid.T) gpu.Inventory {
		inv := dgxNode()
		inv.GPUs = inv.GPUs[:rapid.IntRange(4, 7).Draw(t, "gpus")]
		for i := range inv.GPUs {
			g := &inv.GPUs[i]
			g.Model = rapid.SampledFrom([]string{"NVIDIA A100", "NVIDIA H100"}).Draw(t, "model")
			g.Memory = rapid.SampledFrom([]uint64{40 << 30, 80 << 30}).Draw(t, "memory")
			g.MIG = rapid.IntRange(0, 4).Draw(t, "mig") == 0
			for k := range 4 * b2i(g.MIG) {
				g.Slices = append(g.Slices, gpu.Slice{
					UUID: fmt.Sprintf("MIG-%d-%d", i, k), Index: k,
					Profile: rapid.SampledFrom([]string{"1g.10gb", "2g.20gb"}).Draw(t, "profile"),
					Memory:  rapid.SampledFrom([]uint64{5 << 30, 10 << 30}).Draw(t, "slice memory"),
				})
			}
		}
		return inv
	})
}

// genGang draws the parts of a gang.
func genGang(t *rapid.T) []request.Request {
	words := []string{
		"1", "1", "2", "h100", "a100", "h100:2", "1,mem>=70G", "2,mem>=70G", "1,mem<70G", "a100,mem<70G",
		"1g.10gb", "1g.10gb:2", "2g.20gb", "1g.10gb,mem>=10G", "2g.20gb,mem<10G", "device=0", "device=1", "0:0", "all",
	}
	var parts []request.Request
	for _, w := range rapid.SliceOfN(rapid.SampledFrom(words), 2, 5).Draw(t, "parts") {
		parts = append(parts, mustParseRapid(t, w))
	}
	return parts
}

// canGrant reports, by trying everything, whether each part can get devices of its own.
func canGrant(pools [][]gpu.Device, sizes []int, taken []gpu.Device) bool {
	if len(pools) == 0 {
		return true
	}
	if sizes[0] == 0 {
		return canGrant(pools[1:], sizes[1:], taken)
	}
	for i, d := range pools[0] {
		if slices.ContainsFunc(taken, d.Conflicts) {
			continue
		}
		rest := append([][]gpu.Device{pools[0][i+1:]}, pools[1:]...)
		if canGrant(rest, append([]int{sizes[0] - 1}, sizes[1:]...), append(slices.Clone(taken), d)) {
			return true
		}
	}
	return false
}

// A gang is granted whenever that is possible, its error is ErrBusy only if waiting helps, and its
// parts get the devices that they request.
func TestGangsAreGrantedIfPossible(t *testing.T) {
	granted, busy, never := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		inv := genMixed().Draw(t, "node")
		parts := genGang(t)
		r, err := request.NewGang(parts)
		if err != nil {
			return // named twice
		}
		var pools [][]gpu.Device
		var sizes []int
		for _, p := range parts {
			pool, err := Candidates(inv, p)
			if err != nil {
				if _, err := Choose(inv, r, nil); err == nil || errors.Is(err, ErrBusy) {
					t.Fatalf("%s: %v", r, err)
				}
				return
			}
			pools = append(pools, pool)
			size := p.Count()
			if p.IsAll() {
				size = len(pool)
			}
			sizes = append(sizes, size)
		}
		var taken []gpu.Device
		for _, d := range inv.Devices() {
			if rapid.IntRange(0, 8).Draw(t, "taken") == 0 && !slices.ContainsFunc(taken, d.Conflicts) {
				taken = append(taken, d)
			}
		}
		got, err := Choose(inv, r, taken)
		could, impossible := Candidates(inv, r)
		switch possible := canGrant(pools, sizes, nil); {
		case canGrant(pools, sizes, taken):
			if err != nil || impossible != nil {
				t.Fatalf("%s: %v, %v", r, err, impossible)
			}
			granted++
		case possible:
			var no *Error
			if !errors.As(err, &no) || no.Err != ErrBusy || impossible != nil || no.Free >= no.Wanted || len(no.Busy) == 0 {
				t.Fatalf("%s: %v, %v", r, err, impossible)
			}
			busy++
			return
		default:
			if err == nil || errors.Is(err, ErrBusy) || impossible == nil || errors.Is(impossible, ErrBusy) {
				t.Fatalf("%s: %v, %v", r, err, impossible)
			}
			never++
			return
		}
		shares, err := Divide(inv, r, got)
		if err != nil {
			t.Fatal(err)
		}
		all := slices.Clone(taken)
		for i, share := range shares {
			if len(share) != sizes[i] {
				t.Fatalf("%s: part %d has %v", r, i, share)
			}
			for _, d := range share {
				if !slices.Contains(pools[i], d) || slices.ContainsFunc(all, d.Conflicts) || !slices.Contains(could, d) {
					t.Fatalf("%s: part %d can't have %v", r, i, d)
				}
				all = append(all, d)
			}
		}
	})
	if granted == 0 || busy == 0 || never == 0 {
		t.Errorf("%d granted, %d busy, %d never: the test shows nothing", granted, busy, never)
	}
}

// Equal ranks together get the devices that one task with their total count would get.
func TestGangGetsTheBestSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inv := genNode(9).Draw(t, "node")
		var taken []gpu.Device
		for _, g := range inv.GPUs {
			if rapid.IntRange(0, 3).Draw(t, "taken") == 0 {
				taken = append(taken, g.Device())
			}
		}
		sizes := rapid.SliceOfN(rapid.IntRange(1, 3), 2, 4).Draw(t, "sizes")
		var texts []string
		total := 0
		for _, n := range sizes {
			texts, total = append(texts, fmt.Sprint(n)), total+n
		}
		want, err := Choose(inv, mustParseRapid(t, fmt.Sprint(total)), taken)
		got, err2 := Choose(inv, mustParseRapid(t, strings.Join(texts, ";")), taken)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("%v, %v", err, err2)
		}
		slices.SortFunc(got, func(a, b gpu.Device) int { return strings.Compare(a.Index, b.Index) })
		if !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// The GPUs of a gang are the best set as a whole, even where few of them fit one of the parts.
func TestScarceSetIsOptimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inv := genNode(8).Draw(t, "node")
		var h100, whole []int
		for i, g := range inv.GPUs {
			if !g.MIG && g.Lost == "" {
				whole = append(whole, i)
				if g.Model == "NVIDIA H100" {
					h100 = append(h100, i)
				}
			}
		}
		if len(h100) == 0 || len(whole) == len(h100) {
			return
		}
		n := rapid.IntRange(1, len(h100)).Draw(t, "h100")
		any := rapid.IntRange(1, len(whole)-n).Draw(t, "any")
		got, err := Choose(inv, mustParseRapid(t, fmt.Sprintf("%d;h100:%d", any, n)), nil)
		if err != nil {
			t.Fatal(err)
		}
		set := bestByDefinition(inv, h100, whole, n)
		if places := (node{inv}).gpuPlaces(got[any:]); !slices.Equal(places, set) {
			t.Fatalf("got %v, want %v", places, set)
		}
	})
}

// As few GPUs as possible lose their first slice.
func TestFewGPUsLoseTheirFirstSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inv := genNode(6).Draw(t, "node")
		var taken []gpu.Device
		for _, d := range inv.Devices() {
			if d.Parent != "" && rapid.IntRange(0, 5).Draw(t, "taken") == 0 {
				taken = append(taken, d)
			}
		}
		small, large := rapid.IntRange(1, 5).Draw(t, "small"), rapid.IntRange(1, 3).Draw(t, "large")
		r := mustParseRapid(t, fmt.Sprintf("1g.10gb:%d;2g.20gb:%d;1g.10gb", small, large))
		got, err := Choose(inv, r, taken)
		if err != nil {
			return
		}
		untouched := func(i int) bool {
			return !slices.ContainsFunc(taken, func(d gpu.Device) bool { return d.Parent == inv.GPUs[i].UUID })
		}
		begun := 0
		for _, i := range (node{inv}).gpuPlaces(got) {
			begun += b2i(untouched(i))
		}
		for mask := range 1 << len(inv.GPUs) {
			has, opened := map[string]int{}, 0
			for i, g := range inv.GPUs {
				if g.Lost != "" || untouched(i) && mask>>i&1 == 0 {
					continue
				}
				opened += b2i(untouched(i) && len(g.Slices) > 0)
				for _, s := range g.Slices {
					has[s.Profile] += b2i(!slices.Contains(taken, g.SliceDevice(s)))
				}
			}
			if has["1g.10gb"] > small && has["2g.20gb"] >= large && opened < begun {
				t.Fatalf("%s: %s begins %d GPUs, %b would do with %d", r, indexesOf(got), begun, mask, opened)
			}
		}
	})
}
