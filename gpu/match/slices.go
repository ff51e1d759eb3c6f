package match

import (
	"cmp"
	"iter"
	"math/bits"
	"slices"

	"github.com/berth-gpu/berth/gpu"
)

// packing chooses slices such that as few GPUs as possible lose their first slice. A GPU is begun
// when it loses its first slice.
type packing struct {
	demands []*demand
	// partial are the places of GPUs with at least one slice taken, whole those of GPUs with all
	// slices free; both in order of preference.
	partial, whole []int
	free           []int   // free slices of each GPU
	fit            [][]int // those of them that fit each demand
	// disjoint is set if no slice fits two demands. It is false only if one profile is requested under
	// several conditions.
	disjoint bool
}

// maxWhole is the largest number of whole GPUs for which all combinations are compared.
const maxWhole = 16

// packSlices chooses slices for demands that can all be met. taken are the devices that are leased
// or named.
func (inv node) packSlices(demands []*demand, taken []gpu.Device) {
	p := packing{demands: demands}
	p.loadGPUs(inv.GPUs, setOf(taken))
	gpus := slices.Concat(p.partial, p.chooseWholeGPUs())
	for _, d := range demands {
		d.pool = slices.DeleteFunc(slices.Clone(d.pool), func(c candidate) bool { return !slices.Contains(gpus, c.gpu) })
	}
	s := newSupply(demands)
	for _, d := range demands {
		takeSlices(d, s, gpus)
	}
}

// loadGPUs fills in the packing from the GPUs that have a slice for one of the demands.
func (p *packing) loadGPUs(gpus []gpu.GPU, held set) {
	useful := make([]bool, len(gpus))
	seen := map[string]bool{}
	p.disjoint = true
	for _, d := range p.demands {
		fit := make([]int, len(gpus))
		for _, c := range d.pool {
			fit[c.gpu]++
			useful[c.gpu] = true
			p.disjoint = p.disjoint && !seen[c.UUID]
			seen[c.UUID] = true
		}
		p.fit = append(p.fit, fit)
	}
	p.free = make([]int, len(gpus))
	for i := range gpus {
		g, touched := &gpus[i], false
		for k := range g.Slices {
			if held.conflictsWith(g.Slices[k].UUID, g.UUID) {
				touched = true
			} else {
				p.free[i]++
			}
		}
		switch {
		case !useful[i]:
		case touched:
			p.partial = append(p.partial, i)
		default:
			p.whole = append(p.whole, i)
		}
	}
	fewest := func(a, b int) int { return cmp.Or(cmp.Compare(p.free[a], p.free[b]), cmp.Compare(a, b)) }
	slices.SortFunc(p.partial, fewest)
	slices.SortFunc(p.whole, fewest)
}

// chooseWholeGPUs returns the GPUs to begin: as few as possible, of these the ones with the fewest
// slices, then the first in the order.
func (p *packing) chooseWholeGPUs() []int {
	if len(p.whole) > maxWhole || !p.disjoint {
		return p.chooseManyGPUs()
	}
	for n := range len(p.whole) {
		var best []int
		least := 0
		for mask := range masksOf(n, len(p.whole)) {
			set, size := p.gpusOfMask(mask)
			if (best == nil || size < least) && p.hasEnough(set) {
				best, least = set, size
			}
		}
		if best != nil {
			return best
		}
	}
	return p.whole
}

// masksOf yields the masks with n of so many bits set, in ascending order (Gosper's hack).
func masksOf(n, bits int) iter.Seq[uint] {
	return func(yield func(uint) bool) {
		if n == 0 {
			yield(0)
			return
		}
		for mask := uint(1)<<n - 1; mask < 1<<bits; {
			if !yield(mask) {
				return
			}
			// The lowest run of ones: its top bit moves up by one, the others to the bottom.
			lowest := mask & -mask
			moved := mask + lowest
			mask = moved | (mask^moved)/lowest>>2
		}
	}
}

// gpusOfMask returns the whole GPUs of a mask, and how many slices they have.
func (p *packing) gpusOfMask(mask uint) (set []int, size int) {
	set = make([]int, 0, bits.OnesCount(mask))
	for ; mask != 0; mask &= mask - 1 {
		g := p.whole[bits.TrailingZeros(mask)]
		set, size = append(set, g), size+p.free[g]
	}
	return set, size
}

// chooseManyGPUs is chooseWholeGPUs for more GPUs than can be compared exhaustively: no GPU can be left
// out of its answer, and larger GPUs are kept before smaller ones.
func (p *packing) chooseManyGPUs() []int {
	set := slices.Clone(p.whole)
	for _, g := range p.whole {
		less := slices.DeleteFunc(slices.Clone(set), func(o int) bool { return o == g })
		if p.hasEnough(less) {
			set = less
		}
	}
	return set
}

// hasEnough reports whether the GPUs in partial and those in set have enough slices for all
// demands.
func (p *packing) hasEnough(set []int) bool {
	for i, d := range p.demands {
		there := 0
		for _, g := range p.partial {
			there += p.fit[i][g]
		}
		for _, g := range set {
			there += p.fit[i][g]
		}
		if there < d.count {
			return false
		}
	}
	if p.disjoint {
		return true
	}
	parts := make([]*demand, len(p.demands))
	for i, d := range p.demands {
		parts[i] = &demand{count: d.count}
		for _, c := range d.pool {
			if slices.Contains(p.partial, c.gpu) || slices.Contains(set, c.gpu) {
				parts[i].pool = append(parts[i].pool, c)
			}
		}
	}
	return newSupply(parts).servesRest()
}

// takeSlices takes a demand's slices from the GPUs in their order.
func takeSlices(d *demand, s *supply, gpus []int) {
	left := s.untakenOf(d)
	ok := s.leavesEnough(d, left)
	var set []int
	for _, g := range gpus {
		for i, c := range left {
			if c.gpu == g && len(set) < d.count && (ok == nil || ok(append(set, i))) {
				set = append(set, i)
			}
		}
	}
	slices.Sort(set)
	chosen := make([]candidate, len(set))
	for i, k := range set {
		chosen[i] = left[k]
	}
	s.takeDevices(d, chosen)
}
