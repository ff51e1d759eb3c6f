package match

import (
	"cmp"
	"slices"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// chooseForDemands chooses devices for each demand such that the other demands can still be met.
// Demands with the fewest candidates come first.
func (inv node) chooseForDemands(free []*demand, named, taken []gpu.Device) {
	var cut, whole []*demand // slices and whole GPUs don't compete: a GPU in MIG mode is granted whole only by name
	for _, d := range free {
		if d.pool[0].Parent != "" {
			cut = append(cut, d)
		} else {
			whole = append(whole, d)
		}
	}
	for _, order := range [][]*demand{cut, whole} {
		slices.SortStableFunc(order, func(a, b *demand) int { return cmp.Compare(len(a.pool), len(b.pool)) })
	}
	out := slices.Concat(taken, named)
	inv.packSlices(cut, out)
	gang := inv.gpuPlaces(named)
	for _, d := range cut {
		for _, c := range d.chosen {
			gang = append(gang, c.gpu)
		}
	}
	s := newSupply(whole)
	for _, d := range whole {
		inv.chooseGPUs(d, s, gang, out)
		for _, c := range d.chosen {
			gang, out = append(gang, c.gpu), append(out, c.Device)
		}
	}
}

// chooseGPUs takes the best set of GPUs for a demand: by the links within the set and the links to
// the devices that the gang already has.
func (inv node) chooseGPUs(d *demand, s *supply, gang []int, taken []gpu.Device) {
	left := s.untakenOf(d)
	if len(left) == d.count {
		s.takeDevices(d, left)
		return
	}
	others := inv.freeGPUs(taken)
	scores := inv.pairScores()
	b := search{n: d.count, pairs: make([][]int, len(left)), rest: make([]int, len(left)), bonus: make([]int, len(left))}
	for i, c := range left {
		b.pairs[i] = make([]int, len(left))
		for j, e := range left {
			b.pairs[i][j] = scores[c.gpu][e.gpu]
		}
		for _, o := range others {
			b.rest[i] += scores[c.gpu][o]
		}
		for _, g := range gang {
			b.bonus[i] += scores[c.gpu][g]
		}
	}
	enough := s.leavesEnough(d, left)
	var best []int
	if inv.ExclusiveNICs && d.auto {
		if has := inv.hasNIC(left, d.count, taken); has != nil {
			b.ok = bothAllow(enough, has)
			best = b.findBest()
		}
	}
	if best == nil {
		b.ok = enough
		best = b.findBest()
	}
	chosen := make([]candidate, len(best))
	for i, k := range best {
		chosen[i] = left[k]
	}
	s.takeDevices(d, chosen)
}

func bothAllow(a, b func([]int) bool) func([]int) bool {
	return func(places []int) bool { return (a == nil || a(places)) && b(places) }
}

// hasNIC returns a function that reports whether nics=auto finds a free NIC for a set of n GPUs. It
// is nil if no set has one.
func (inv node) hasNIC(left []candidate, n int, taken []gpu.Device) func(places []int) bool {
	auto, _ := request.Parse("1,nics=auto")
	near, free := make([]bool, len(left)), make([]bool, len(left)) // one that is near, and free or not
	found := false
	for i, c := range left {
		for _, nic := range inv.NICs {
			near[i] = near[i] || nic.Active() && distanceTo(nic, c.gpu) <= nearestPath
		}
		_, err := inv.matchNICs(auto, []int{c.gpu}, taken, nil)
		free[i], found = near[i] && err == nil, found || err == nil
	}
	if !found {
		return nil
	}
	return func(places []int) bool {
		var gpus []int
		hasNear := false
		for _, p := range places {
			if free[p] {
				return true
			}
			gpus, hasNear = append(gpus, left[p].gpu), hasNear || near[p]
		}
		if len(places) < n || hasNear {
			return len(places) < n
		}
		_, err := inv.matchNICs(auto, gpus, taken, nil)
		return err == nil
	}
}

// divideAmongParts divides the devices chosen for each demand among its parts.
func (inv node) divideAmongParts(demands, free []*demand, parts int) [][]gpu.Device {
	shares := make([][]gpu.Device, parts)
	var scores [][]int
	next := 0
	for _, d := range demands {
		if !d.IsByID() {
			d = free[next] // free has the demands that name no devices, in the order of demands
			next++
		}
		if len(d.sizes) == 1 {
			shares[d.parts[0]] = toDevices(d.chosen)
			continue
		}
		if scores == nil {
			scores = inv.pairScores()
		}
		for k, share := range divideSet(scores, d.chosen, d.sizes) {
			shares[d.parts[k]] = toDevices(share)
		}
	}
	return shares
}
