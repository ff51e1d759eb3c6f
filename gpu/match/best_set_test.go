package match

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// genNode draws a node with arbitrary links, some GPUs in MIG mode or lost.
func genNode(most int) *rapid.Generator[gpu.Inventory] {
	return rapid.Custom(func(t *rapid.T) gpu.Inventory {
		n := rapid.IntRange(1, most).Draw(t, "gpus")
		paths := rapid.SampledFrom([]gpu.Path{gpu.PathPIX, gpu.PathPXB, gpu.PathPHB, gpu.PathNODE, gpu.PathSYS, ""})
		nvlinks := rapid.SampledFrom([]int{0, 0, 1, 2, 4})
		inv := nodeOf("NVIDIA H100", 1<<36, n, func(a, b int) gpu.Link {
			return gpu.Link{NVLinks: nvlinks.Draw(t, "nvlinks"), PCIe: paths.Draw(t, "path")}
		})
		for i := range inv.GPUs {
			g := &inv.GPUs[i]
			switch rapid.IntRange(0, 6).Draw(t, "kind") {
			case 0:
				g.Lost = "lost"
			case 1:
				g.MIG = true
			case 2:
				g.Model = "NVIDIA A100"
			}
			for s := range rapid.IntRange(0, 4).Draw(t, "slices") * bits.Len(uint(b2i(g.MIG))) {
				g.Slices = append(g.Slices, gpu.Slice{
					UUID: fmt.Sprintf("MIG-%d-%d", i, s), Index: s,
					Profile: rapid.SampledFrom([]string{"1g.10gb", "2g.20gb"}).Draw(t, "profile"),
				})
			}
		}
		return inv
	})
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// bestByDefinition finds the best set by its definition: it tries every subset of the free candidates, and
// compares its score, then the score of what then is free, then the indexes.
func bestByDefinition(inv gpu.Inventory, may, free []int, n int) []int {
	score := func(set []int) (sum int) {
		for i, a := range set {
			for _, b := range set[:i] {
				sum += scoreLink(inv.Link(b, a))
			}
		}
		return sum
	}
	var best []int
	bestScore, bestLeft := -1, -1
	for mask := range 1 << len(may) {
		if bits.OnesCount(uint(mask)) != n {
			continue
		}
		var set []int
		for i, m := range may {
			if mask>>i&1 == 1 {
				set = append(set, m)
			}
		}
		left := slices.DeleteFunc(slices.Clone(free), func(i int) bool { return slices.Contains(set, i) })
		own, other := score(set), score(left)
		if own > bestScore || own == bestScore && (other > bestLeft || other == bestLeft && slices.Compare(set, best) < 0) {
			best, bestScore, bestLeft = set, own, other
		}
	}
	return best
}

// TestMatchIsOptimal compares Match with the definition on arbitrary nodes.
func TestMatchIsOptimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inv := genNode(9).Draw(t, "node")
		word := rapid.SampledFrom([]string{"", "h100:"}).Draw(t, "word")
		var taken []gpu.Device
		var may, free []int
		for i, g := range inv.GPUs {
			switch {
			case g.MIG || g.Lost != "":
			case rapid.IntRange(0, 3).Draw(t, "taken") == 0:
				taken = append(taken, g.Device())
			default:
				free = append(free, i)
				if word == "" || g.Model == "NVIDIA H100" {
					may = append(may, i)
				}
			}
		}
		if len(may) == 0 {
			return
		}
		n := rapid.IntRange(1, len(may)).Draw(t, "n")
		got, err := Choose(inv, mustParseRapid(t, fmt.Sprint(word, n)), taken)
		if err != nil {
			t.Fatal(err)
		}
		var want []gpu.Device
		for _, i := range bestByDefinition(inv, may, free, n) {
			want = append(want, inv.GPUs[i].Device())
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// TestEveryCountOf16IsOptimal compares every count on a node of 16 GPUs with the definition: the
// score of each of the 65,536 sets and of the remaining GPUs.
func TestEveryCountOf16IsOptimal(t *testing.T) {
	const n = 16
	rapid.Check(t, func(t *rapid.T) {
		paths := rapid.SampledFrom([]gpu.Path{gpu.PathPIX, gpu.PathPXB, gpu.PathPHB, gpu.PathNODE, gpu.PathSYS})
		links := rapid.SampledFrom([]int{0, 0, 0, 1, 2, 4})
		inv := nodeOf("NVIDIA H100", 1<<36, n, func(a, b int) gpu.Link {
			return gpu.Link{NVLinks: links.Draw(t, "nvlinks"), PCIe: paths.Draw(t, "path")}
		})
		scores := (node{inv}).pairScores()
		sums := make([]int, 1<<n)
		for mask := 1; mask < 1<<n; mask++ {
			low := bits.TrailingZeros(uint(mask))
			rest := mask & (mask - 1)
			sums[mask] = sums[rest]
			for m := rest; m != 0; m &= m - 1 {
				sums[mask] += scores[low][bits.TrailingZeros(uint(m))]
			}
		}
		var best [n + 1]int // the best set of each count
		for mask := range 1 << n {
			k, all := bits.OnesCount(uint(mask)), 1<<n-1
			b := best[k]
			if b == 0 || sums[mask] > sums[b] || sums[mask] == sums[b] && (sums[all&^mask] > sums[all&^b] ||
				sums[all&^mask] == sums[all&^b] && bits.Reverse16(uint16(mask)) > bits.Reverse16(uint16(b))) {
				best[k] = mask
			}
		}
		for k := 1; k <= n; k++ {
			got, err := Choose(inv, mustParseRapid(t, fmt.Sprint(k)), nil)
			if err != nil {
				t.Fatal(err)
			}
			mask := 0
			for _, i := range (node{inv}).gpuPlaces(got) {
				mask |= 1 << i
			}
			if mask != best[k] {
				t.Fatalf("%d: got %b, want %b", k, mask, best[k])
			}
		}
	})
}

func mustParseRapid(t *rapid.T, s string) request.Request {
	r, err := request.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestMatchGrantsOnlyFreeDevices checks for arbitrary requests that the result consists of
// candidates, conflicts with no taken device, has the right size and is deterministic, and that the
// error is ErrBusy only if waiting helps.
func TestMatchGrantsOnlyFreeDevices(t *testing.T) {
	granted, busy := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		inv := genNode(6).Draw(t, "node")
		all := inv.Devices()
		var taken []gpu.Device
		for _, d := range all {
			if rapid.IntRange(0, 3).Draw(t, "taken") == 0 && !slices.ContainsFunc(taken, d.Conflicts) {
				taken = append(taken, d)
			}
		}
		r := mustParseRapid(t, rapid.SampledFrom([]string{
			"1", "2", "3", "all", "h100", "a100:2", "1g.10gb", "1g.10gb:3", "2g.20gb:2", "device=0", "0,1", "0:0", "0:0,1:1", "mem>1G",
		}).Draw(t, "request"))
		candidates, never := Candidates(inv, r)
		got, err := Choose(inv, r, taken)
		again, errAgain := Choose(inv, r, taken)
		if !slices.Equal(got, again) || fmt.Sprint(err) != fmt.Sprint(errAgain) {
			t.Fatalf("twice: %v %v, %v %v", got, err, again, errAgain)
		}
		if err != nil {
			failed := err.(*Error)
			if (failed.Err == ErrBusy) != (never == nil) || failed.Err == ErrBusy && (len(failed.Busy) == 0 || failed.Free >= failed.Wanted) {
				t.Fatalf("%v, though without leases %v", err, never)
			}
			busy++
			return
		}
		granted++
		if n := r.Count(); n != 0 && len(got) != n || r.IsAll() && !slices.Equal(got, candidates) {
			t.Fatalf("%s: %d devices", r, len(got))
		}
		for i, d := range got {
			if !slices.Contains(candidates, d) || slices.ContainsFunc(taken, d.Conflicts) || slices.ContainsFunc(got[:i], d.Conflicts) {
				t.Fatalf("%s: %v isn't to be had", r, d)
			}
		}
	})
	if granted == 0 || busy == 0 {
		t.Errorf("%d granted, %d refused: the test shows nothing", granted, busy)
	}
}

// TestBoundedSearch: where not all sets are enumerated, the result is still a valid set, and on a
// node with islands of NVLink it is a best one.
func TestBoundedSearch(t *testing.T) {
	const n, island = 64, 8
	inv := nodeOf("NVIDIA H100", 1<<36, n, func(a, b int) gpu.Link {
		if a/island == b/island {
			return gpu.Link{NVLinks: 4, PCIe: gpu.PathPIX}
		}
		return gpu.Link{PCIe: gpu.PathSYS}
	})
	taken := []gpu.Device{inv.GPUs[0].Device(), inv.GPUs[20].Device()}
	tests := []struct {
		n    string
		want string
	}{
		{"8", "8 9 10 11 12 13 14 15"},
		{"7", "1 2 3 4 5 6 7"},
		{"15", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"},
	}
	for _, tt := range tests {
		t.Run(tt.n, func(t *testing.T) {
			got, err := Choose(inv, mustParse(t, tt.n), taken)
			if err != nil {
				t.Fatal(err)
			}
			if want := devicesAt(t, inv, strings.Fields(tt.want)...); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// TestBoundedSearchIsLocallyOptimal: no exchange of one member for another improves the result of
// the bounded search.
func TestBoundedSearchIsLocallyOptimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.IntRange(2, 10).Draw(t, "all")
		n := rapid.IntRange(1, all-1).Draw(t, "n")
		pairs, rest := make([][]int, all), make([]int, all)
		bonus := rapid.SliceOfN(rapid.IntRange(0, 5), all, all).Draw(t, "bonus")
		for i := range pairs {
			pairs[i] = make([]int, all)
			for j := range i {
				pairs[i][j] = rapid.IntRange(0, 5).Draw(t, "score")
				pairs[j][i] = pairs[i][j]
				rest[i] += pairs[i][j]
				rest[j] += pairs[i][j]
			}
		}
		value := func(set []int) (v int) { // pair scores first, then the score of the remaining GPUs
			for _, a := range set {
				v += 2000*bonus[a] - rest[a]
				for _, b := range set {
					v += 1000 * pairs[a][b]
				}
			}
			return v
		}
		s := search{pairs: pairs, rest: rest, n: n, bonus: bonus}
		set := s.searchGreedily()
		if len(set) != n || !slices.IsSorted(set) || len(slices.Compact(slices.Clone(set))) != n {
			t.Fatalf("%v isn't a set of %d", set, n)
		}
		for k := range set {
			for other := range all {
				if swapped := slices.Clone(set); !slices.Contains(set, other) {
					swapped[k] = other
					if value(swapped) > value(set) {
						t.Fatalf("%v is better than %v", swapped, set)
					}
				}
			}
		}
	})
}

func TestSetsUpTo(t *testing.T) {
	tests := []struct{ all, n, want int }{
		{16, 8, 12870}, {16, 1, 16}, {16, 15, 16}, {17, 8, exactSets + 1}, {17, 2, 136}, {1000, 999, 1000}, {5, 0, 1},
	}
	for _, tt := range tests {
		if got := setsUpTo(tt.all, tt.n, exactSets); got != tt.want {
			t.Errorf("%d of %d: %d, want %d", tt.n, tt.all, got, tt.want)
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{8, 16, 64} {
		inv := nodeOf("NVIDIA H100", 1<<36, n, func(a, c int) gpu.Link { return gpu.Link{NVLinks: 18, PCIe: halves(max(n/2, 1), a, c)} })
		for _, k := range []int{1, 2, n / 2, n - 1} {
			r := mustParse(b, fmt.Sprint(k))
			b.Run(fmt.Sprintf("%dof%d", k, n), func(b *testing.B) {
				for b.Loop() {
					if _, err := Choose(inv, r, nil); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
