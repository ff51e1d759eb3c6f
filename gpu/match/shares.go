package match

import (
	"math/bits"
	"slices"
)

// sameGPU is the score of two slices of one GPU: more than any links have.
const sameGPU = 1 << 20

// divideSet cuts a set, in the node's order, into shares of those sizes, so that the sum
// of the pair scores within the shares is as high as can be; among equals it takes
// the first in lexicographic order. Up to 16 devices that is exact where the number
// of ways allows it, as it does for equal shares; else shares are improved by
// exchanges until none helps.
func divideSet(scores [][]int, set []candidate, sizes []int) [][]candidate {
	d := division{sizes: sizes, pairs: make([][]int, len(set))}
	for i, a := range set {
		d.pairs[i] = make([]int, len(set))
		for j, b := range set {
			if d.pairs[i][j] = scores[a.gpu][b.gpu]; a.gpu == b.gpu {
				d.pairs[i][j] = sameGPU
			}
		}
	}
	shares := make([][]candidate, len(sizes))
	for k, share := range d.findShares() {
		for _, i := range share {
			shares[k] = append(shares[k], set[i])
		}
	}
	return shares
}

type division struct {
	pairs [][]int
	sizes []int
	// memo caches highestSum plus one by the mask of used devices; 0 means not computed. pick is the
	// best next share for that mask.
	memo []int
	pick []uint32
	// top is an upper bound of the sum of each device's scores with the others of its share.
	top [exactDevices]int
}

const (
	exactDevices = 16
	exactSteps   = 300_000 // shares that are looked at for an exact answer
)

// findShares returns the places of each share, ascending.
func (d *division) findShares() [][]int {
	n := len(d.pairs)
	switch {
	case len(d.sizes) == 1 || n == len(d.sizes):
		return d.inOrder()
	case n <= exactDevices && d.countSteps() <= exactSteps:
		return d.searchExactly()
	}
	return d.improveShares()
}

// inOrder fills the shares in the order of the places.
func (d *division) inOrder() [][]int {
	shares := make([][]int, len(d.sizes))
	next := 0
	for k, size := range d.sizes {
		for range size {
			shares[k] = append(shares[k], next)
			next++
		}
	}
	return shares
}

// countSteps estimates how many shares searchExactly would examine.
func (d *division) countSteps() int {
	steps, used, all := 0, 0, len(d.pairs)
	for k, size := range d.sizes {
		ways, left := setsUpTo(all, used, exactSteps), all-used
		if d.haveSameSize(0) { // the first k devices are used
			ways = setsUpTo(all-k, used-k, exactSteps)
		}
		if d.haveSameSize(k) {
			left, size = left-1, size-1
		}
		if steps += ways * setsUpTo(left, size, exactSteps); steps > exactSteps {
			return steps
		}
		used += d.sizes[k]
	}
	return steps
}

// haveSameSize reports whether the shares from k on have the same size: the first remaining device
// can then be put into the next share without loss.
func (d *division) haveSameSize(k int) bool {
	return !slices.ContainsFunc(d.sizes[k:], func(size int) bool { return size != d.sizes[k] })
}

// searchExactly tries every division that may be better than the best so far. Each set of remaining
// devices is examined once (memo).
func (d *division) searchExactly() [][]int {
	for i, row := range d.pairs {
		d.top[i] = topSum(row, i, slices.Max(d.sizes)-1)
	}
	d.memo, d.pick = make([]int, 1<<len(d.pairs)), make([]uint32, 1<<len(d.pairs))
	d.highestSum(0, 0)
	shares := make([][]int, len(d.sizes))
	used := uint32(0)
	for k := range shares {
		share := d.pick[used]
		for m := share; m != 0; m &= m - 1 {
			shares[k] = append(shares[k], bits.TrailingZeros32(m))
		}
		used |= share
	}
	return shares
}

// sumOfShares is the sum of the pairs within shares.
func (d *division) sumOfShares(shares [][]int) (sum int) {
	for _, share := range shares {
		for n, i := range share {
			for _, j := range share[:n] {
				sum += d.pairs[i][j]
			}
		}
	}
	return sum
}

// topSum adds up the highest scores that a device has with some of the others.
func topSum(row []int, device, count int) (sum int) {
	others := slices.Delete(slices.Clone(row), device, device+1)
	slices.Sort(others)
	for _, score := range others[len(others)-count:] {
		sum += score
	}
	return sum
}

// highestSum is the highest sum that the shares from k on can have.
func (d *division) highestSum(k int, used uint32) int {
	if k == len(d.sizes) {
		return 0
	}
	if d.memo[used] == 0 {
		b := branch{division: d, k: k, used: used, best: -1, first: d.haveSameSize(k)}
		if k == 0 && len(d.sizes) > 2 { // results below that of improveShares are not examined
			b.best = d.sumOfShares(d.improveShares()) - 1
		}
		left := (uint32(1)<<len(d.pairs) - 1) &^ used
		for m := left; m != 0; m &= m - 1 {
			b.top += d.top[bits.TrailingZeros32(m)]
		}
		b.growShare(left, 0, d.sizes[k], 0, 0)
		d.memo[used], d.pick[used] = b.best+1, b.pick
	}
	return d.memo[used] - 1
}

// branch looks for the best next share.
type branch struct {
	*division
	k     int
	used  uint32
	first bool // the first device that is left has to be in it
	top   int  // twice what those that are left can have at most
	best  int
	pick  uint32
}

// growShare completes a share that lacks devices by each combination of the remaining devices, and
// offers the results.
func (b *branch) growShare(left, share uint32, lacks, score, top int) {
	if lacks == 0 {
		b.offerShare(share, score, b.top-top)
		return
	}
	for bits.OnesCount32(left) >= lacks {
		i := bits.TrailingZeros32(left)
		left &= left - 1
		gain, row := 0, b.pairs[i]
		for m := share; m != 0; m &= m - 1 {
			gain += row[bits.TrailingZeros32(m)]
		}
		b.growShare(left, share|1<<i, lacks-1, score+gain, top+b.division.top[i])
		if share == 0 && b.first {
			return
		}
	}
}

// offerShare keeps a share that is better than the best so far, with what the others can have:
// half of top at most.
func (b *branch) offerShare(share uint32, score, top int) {
	if score+top/2 <= b.best {
		return
	}
	used := b.used | share
	if score += b.highestSum(b.k+1, used); score > b.best {
		b.best, b.pick = score, share
	}
}

// improveShares exchanges devices between shares as long as that makes the sum higher.
func (d *division) improveShares() [][]int {
	shares := d.inOrder()
	in := make([]int, len(d.pairs)) // the share of each place
	for k, share := range shares {
		for _, i := range share {
			in[i] = k
		}
	}
	for range len(d.pairs) * len(d.pairs) {
		if !d.exchangeBest(in) {
			break
		}
	}
	for k := range shares {
		shares[k] = shares[k][:0]
	}
	for i, k := range in {
		shares[k] = append(shares[k], i)
	}
	return shares
}

// exchangeBest makes the best exchange of two devices; false if none is good.
func (d *division) exchangeBest(in []int) bool {
	flat, with := make([]int, len(in)*len(d.sizes)), make([][]int, len(in)) // of each place: the sum of its pairs with each share
	for i := range in {
		with[i] = flat[i*len(d.sizes):][:len(d.sizes)]
		for j, k := range in {
			if j != i {
				with[i][k] += d.pairs[i][j]
			}
		}
	}
	most, from, to := 0, -1, -1
	for i := range in {
		for j := range i {
			if in[i] == in[j] {
				continue
			}
			gain := with[i][in[j]] + with[j][in[i]] - with[i][in[i]] - with[j][in[j]] - 2*d.pairs[i][j]
			if gain > most {
				most, from, to = gain, i, j
			}
		}
	}
	if from < 0 {
		return false
	}
	in[from], in[to] = in[to], in[from]
	return true
}
