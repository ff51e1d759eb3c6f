package match

import (
	"cmp"
	"slices"

	"github.com/berth-gpu/berth/gpu"
)

// exactSets is how many sets are compared at most for an exact answer: 8 of 16.
const exactSets = 12870

// search looks for the n of len(pairs) GPUs whose pair scores, and what each of them
// has as a bonus, have the highest sum. Among equals it takes the set whose members
// have the lowest sum of rest, then the lexicographically lowest.
//
// rest[i] is the sum of i's pair scores with all that is free. What remains for
// others has the score (all − Σrest + own), so among sets of equal own score a
// low Σrest is the same as a good remainder.
type search struct {
	pairs       [][]int
	rest, bonus []int
	n           int
	// ok reports whether a set can be taken or, if it is too small, whether it is part of one that
	// can; nil if all sets can. A set that is ok and too small can always be extended by one place.
	ok func(places []int) bool

	best                []int
	bestScore, bestRest int
}

// findBest returns the places of the best set, ascending.
func (s *search) findBest() []int {
	if s.bonus == nil {
		s.bonus = make([]int, len(s.pairs))
	}
	if setsUpTo(len(s.pairs), s.n, exactSets) <= exactSets {
		s.enumerateSets(0, make([]int, 0, s.n), 0, 0)
		return s.best
	}
	return s.searchGreedily()
}

// setsUpTo counts the sets of n out of all, and stops counting above limit.
func setsUpTo(all, n, limit int) int {
	n = min(n, all-n)
	sets := 1
	for i := 1; i <= n; i++ {
		if sets = sets * (all - n + i) / i; sets > limit {
			return limit + 1
		}
	}
	return sets
}

// offerSet keeps set, whose places ascend, if it is better than the best so far.
func (s *search) offerSet(set []int, score, rest int) {
	if s.isBetter(set, score, rest) && (s.ok == nil || s.ok(set)) {
		s.best = append(s.best[:0], set...)
		s.bestScore, s.bestRest = score, rest
	}
}

func (s *search) isBetter(set []int, score, rest int) bool {
	return s.best == nil || cmp.Or(
		cmp.Compare(s.bestScore, score),
		cmp.Compare(rest, s.bestRest),
		slices.Compare(set, s.best),
	) < 0
}

// enumerateSets offers every set that begins with set and continues with places from next on, in
// lexicographic order.
func (s *search) enumerateSets(next int, set []int, score, rest int) {
	if len(set) == s.n {
		s.offerSet(set, score, rest)
		return
	}
	for i := next; i <= len(s.pairs)-(s.n-len(set)); i++ {
		gain, row := s.bonus[i], s.pairs[i]
		for _, j := range set {
			gain += row[j]
		}
		s.enumerateSets(i+1, append(set, i), score+gain, rest+s.rest[i])
	}
}

// maxStarts bounds the inexact search, so that it stays within a few
// milliseconds for some hundred GPUs.
const maxStarts = 64

// searchGreedily grows a set from each of the first places, always by the GPU that adds
// most, then swaps members for others as long as that makes it better.
func (s *search) searchGreedily() []int {
	for start := range min(len(s.pairs), maxStarts) {
		g := growingSet{search: s, in: make([]bool, len(s.pairs)), gain: slices.Clone(s.bonus)}
		if s.ok != nil && !s.ok([]int{start}) {
			continue
		}
		g.addPlace(start)
		for range s.n - 1 {
			g.addPlace(g.bestOutside())
		}
		for range s.n {
			if !g.swapBestPair() {
				break
			}
		}
		g.offerTo(s)
	}
	return s.best
}

// growingSet is a set in the making. gain[i] is i's bonus and the sum of its pair scores
// with the set.
type growingSet struct {
	*search
	in   []bool
	gain []int
}

func (g *growingSet) addPlace(i int) { g.togglePlace(i, 1) }

func (g *growingSet) togglePlace(i, sign int) {
	g.in[i] = sign > 0
	for j, score := range g.pairs[i] {
		g.gain[j] += sign * score
	}
}

// bestOutside returns the place with the highest gain; among equals the one with the lowest rest,
// then the lowest place.
func (g *growingSet) bestOutside() int {
	best := -1
	for i, in := range g.in {
		if !in && (best < 0 || g.gain[i] > g.gain[best] ||
			g.gain[i] == g.gain[best] && g.rest[i] < g.rest[best]) && g.allowsChange(-1, i) {
			best = i
		}
	}
	return best
}

// swapBestPair exchanges the pair that improves the set most; false if none does.
func (g *growingSet) swapBestPair() bool {
	from, to, most, least := -1, -1, 0, 0
	for i, in := range g.in {
		for j := range g.in {
			if !in || g.in[j] {
				continue
			}
			gain := g.gain[j] - g.pairs[i][j] - g.gain[i]
			rest := g.rest[j] - g.rest[i]
			if (gain > most || gain == most && rest < least) && g.allowsChange(i, j) {
				from, to, most, least = i, j, gain, rest
			}
		}
	}
	if from < 0 {
		return false
	}
	g.togglePlace(from, -1)
	g.togglePlace(to, 1)
	return true
}

// allowsChange reports whether the set can be taken without one place, or -1, and with another.
func (g *growingSet) allowsChange(without, with int) bool {
	if g.ok == nil {
		return true
	}
	set := []int{with}
	for i, in := range g.in {
		if in && i != without {
			set = append(set, i)
		}
	}
	return g.ok(set)
}

func (g *growingSet) offerTo(s *search) {
	var set []int
	score, rest := 0, 0
	for i, in := range g.in {
		if in {
			set = append(set, i)
			score += g.gain[i] + g.bonus[i]
			rest += g.rest[i]
		}
	}
	s.offerSet(set, score/2, rest)
}

// scoreLink says how well a pair works together: the field's common scale, in which
// one NVLink outweighs every difference of the PCIe path.
func scoreLink(l gpu.Link) int {
	score := 100 * l.NVLinks
	switch l.PCIe {
	case gpu.PathSYS:
		score += 10
	case gpu.PathNODE:
		score += 20
	case gpu.PathPHB:
		score += 30
	case gpu.PathPXB:
		score += 40
	case gpu.PathPIX:
		score += 50
	}
	return score
}

// pairScores returns the score of each pair of GPUs, by index.
func (inv node) pairScores() [][]int {
	n := len(inv.GPUs)
	all := make([][]int, n)
	cells := make([]int, n*n)
	for i := range all {
		all[i] = cells[i*n : (i+1)*n]
	}
	for _, l := range inv.Links {
		if l.A >= 0 && l.A < n && l.B >= 0 && l.B < n && l.A != l.B {
			all[l.A][l.B] = scoreLink(l)
			all[l.B][l.A] = scoreLink(l)
		}
	}
	return all
}
