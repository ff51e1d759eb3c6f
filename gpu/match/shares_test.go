package match

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/gpu"
)

// bruteShares finds the highest sum by trying every way, and the first that has it.
func bruteShares(pairs [][]int, sizes []int) (best int, first [][]int) {
	best = -1
	shares := make([][]int, len(sizes))
	var place func(k, from int, free []int)
	place = func(k, from int, free []int) {
		if k == len(sizes) {
			sum := sumOf(pairs, shares)
			if sum > best {
				best, first = sum, nil
				for _, s := range shares {
					first = append(first, slices.Clone(s))
				}
			}
			return
		}
		if len(shares[k]) == sizes[k] {
			place(k+1, 0, free)
			return
		}
		for i := from; i < len(free); i++ {
			shares[k] = append(shares[k], free[i])
			place(k, i, slices.Delete(slices.Clone(free), i, i+1))
			shares[k] = shares[k][:len(shares[k])-1]
		}
	}
	all := make([]int, len(pairs))
	for i := range all {
		all[i] = i
	}
	place(0, 0, all)
	return best, first
}

func sumOf(pairs [][]int, shares [][]int) (sum int) {
	for _, share := range shares {
		for i, a := range share {
			for _, b := range share[:i] {
				sum += pairs[a][b]
			}
		}
	}
	return sum
}

func genDivision(t *rapid.T, most int) division {
	d := division{}
	total := 0
	for range rapid.IntRange(2, 4).Draw(t, "shares") {
		size := rapid.IntRange(1, 4).Draw(t, "size")
		if total+size > most {
			break
		}
		d.sizes, total = append(d.sizes, size), total+size
	}
	if rapid.Bool().Draw(t, "equal") {
		for i := range d.sizes {
			total += d.sizes[0] - d.sizes[i]
			d.sizes[i] = d.sizes[0]
		}
	}
	d.pairs = make([][]int, total)
	for i := range d.pairs {
		d.pairs[i] = make([]int, total)
		for j := range i {
			d.pairs[i][j] = rapid.SampledFrom([]int{0, 10, 20, 50, 210, 450}).Draw(t, "score")
			d.pairs[j][i] = d.pairs[i][j]
		}
	}
	return d
}

func TestSharesAreOptimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := genDivision(t, 9)
		if len(d.pairs) > 9 {
			return
		}
		best, first := bruteShares(d.pairs, d.sizes)
		got := d.findShares()
		if sum := sumOf(d.pairs, got); sum != best {
			t.Fatalf("%v has %d, %v has %d", got, sum, first, best)
		}
		if exact := (&division{pairs: d.pairs, sizes: d.sizes}).searchExactly(); fmt.Sprint(exact) != fmt.Sprint(first) {
			t.Fatalf("got %v, %v comes first", exact, first)
		}
		if rough := sumOf(d.pairs, d.improveShares()); rough > best || rough < sumOf(d.pairs, d.inOrder()) {
			t.Fatalf("improved to %d, from %d, best is %d", rough, sumOf(d.pairs, d.inOrder()), best)
		}
	})
}

// countSteps is an upper bound of the shares that searchExactly examines.
func TestCountStepsIsUpperBound(t *testing.T) {
	for _, tt := range []struct {
		sizes []int
		exact bool
	}{
		{[]int{8, 8}, true},
		{[]int{4, 4, 4, 4}, true},
		{[]int{2, 2, 2, 2, 2, 2, 2, 2}, true},
		{[]int{5, 5, 5}, true},
		{[]int{3, 3, 3, 3, 3}, true},
		{[]int{4, 4, 4, 3}, false},
		{[]int{1, 2, 2, 3}, true},
	} {
		n := 0
		for _, s := range tt.sizes {
			n += s
		}
		d := division{sizes: tt.sizes, pairs: make([][]int, n)}
		if steps := d.countSteps(); (steps <= exactSteps) != tt.exact {
			t.Errorf("%v: %d steps", tt.sizes, steps)
		}
	}
}

// With too many divisions to compare all, exchanges still find islands of NVLink.
func TestManyShares(t *testing.T) {
	inv := nodeOf("NVIDIA H100", 1<<36, 24, func(a, b int) gpu.Link {
		if a%6 == b%6 {
			return gpu.Link{NVLinks: 4}
		}
		return gpu.Link{PCIe: gpu.PathSYS}
	})
	got, err := Choose(inv, mustParse(t, "4;4;4;4;4;4"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if (node{inv}).gpuPlaces(got[i : i+1])[0]%6 != (node{inv}).gpuPlaces(got[i/4*4 : i/4*4+1])[0]%6 {
			t.Fatalf("%s isn't cut into islands", indexesOf(got))
		}
	}
}

func BenchmarkMatchGang(b *testing.B) {
	inv := nodeOf("NVIDIA H100", 1<<36, 16, func(a, c int) gpu.Link { return gpu.Link{NVLinks: (a*c + a + c) % 5, PCIe: halves(8, a, c)} })
	for i := range inv.GPUs {
		if i%3 == 0 {
			inv.GPUs[i].Model = "NVIDIA A100"
		}
	}
	for _, text := range []string{"2;2;2;2", "2;2;2;2;2;2;2;2", "4;4;4;4", "8;8", "4;4;4;3", "1;1;1;1;1;1;1;1", "8;a100:3", "h100:4;a100:2;4"} {
		r := mustParse(b, text)
		b.Run(text, func(b *testing.B) {
			for b.Loop() {
				if _, err := Choose(inv, r, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkMatchGangIslands(b *testing.B) {
	for name, link := range map[string]func(a, c int) gpu.Link{
		"uniform": func(a, c int) gpu.Link { return gpu.Link{NVLinks: 18, PCIe: halves(8, a, c)} },
		"eights":  func(a, c int) gpu.Link { return gpu.Link{NVLinks: 18 * boolToInt(a/8 == c/8), PCIe: halves(8, a, c)} },
		"fours":   func(a, c int) gpu.Link { return gpu.Link{NVLinks: 4 * boolToInt(a%4 == c%4), PCIe: halves(8, a, c)} },
	} {
		inv := nodeOf("NVIDIA H100", 1<<36, 16, link)
		r := mustParse(b, "4;4;4;4")
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Choose(inv, r, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
