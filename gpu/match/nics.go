package match

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// nearestPath is as far as auto looks for NICs: GPUDirect works up to there by default.
const nearestPath = 1 // PXB

// adapter is a NIC that a request could get.
type adapter struct {
	gpu.Device
	at   int   // place in Inventory.NICs
	far  []int // from each of the GPUs
	free bool
	held int // how many other leases hold it
}

// matchNICs chooses NICs for the request, near the GPUs at those places. Among equally near NICs,
// those that aren't in used come first.
func (inv node) matchNICs(r request.Request, gpus []int, taken, used []gpu.Device) ([]gpu.Device, error) {
	pool, wanted, err := inv.nicPool(r)
	if err != nil || len(pool) == 0 || r.NICs() == request.AutoNICs && len(gpus) == 0 {
		return nil, err
	}
	inv.measureNICs(pool, gpus, taken)
	for i := range pool {
		for _, u := range used {
			pool[i].held += boolToInt(u.UUID == pool[i].UUID)
		}
	}
	if r.NICs() == request.AutoNICs {
		pool, wanted = nearbyNICs(pool, len(gpus))
	}
	free := slices.DeleteFunc(slices.Clone(pool), func(a adapter) bool { return !a.free })
	if r.NICs() == request.AutoNICs {
		wanted = max(1, min(wanted, len(free)))
	}
	if len(free) < wanted {
		return nil, nicsBusy(r, pool, len(free), wanted, taken)
	}
	var ds []gpu.Device
	for _, i := range nearestNICs(free, wanted) {
		ds = append(ds, free[i].Device)
	}
	return ds, nil
}

// nicPool lists the NICs that the request could get, and how many it wants at least.
// It fails if the node doesn't have them.
func (inv node) nicPool(r request.Request) (pool []adapter, wanted int, err error) {
	switch {
	case r.NICs() == "":
		return nil, 0, nil
	case r.NICs() == request.AutoNICs:
		wanted = 1
	case isNumber(r.NICs()):
		wanted, _ = strconv.Atoi(r.NICs()) // text is a number of at most three digits
	default:
		pool, err = inv.namedNICs(r)
		return pool, len(pool), err
	}
	for i, n := range inv.NICs {
		if n.Active() {
			pool = append(pool, adapter{Device: n.Device(!inv.ExclusiveNICs), at: i})
		}
	}
	if len(pool) < wanted {
		return nil, 0, inv.tooManyNICs(r, len(pool), wanted)
	}
	return pool, wanted, nil
}

func (inv node) namedNICs(r request.Request) ([]adapter, error) {
	var pool []adapter
	for name := range strings.SplitSeq(r.NICs(), "+") {
		i := slices.IndexFunc(inv.NICs, func(n gpu.NIC) bool { return strings.EqualFold(n.Name, name) })
		if i < 0 {
			var known []string
			for _, n := range inv.NICs {
				known = append(known, n.Name)
			}
			return nil, unknownError(r, "node has no NIC "+name, name, known)
		}
		pool = append(pool, adapter{Device: inv.NICs[i].Device(!inv.ExclusiveNICs), at: i})
	}
	slices.SortFunc(pool, func(a, b adapter) int { return a.at - b.at })
	return pool, nil
}

// measureNICs fills in how far the NICs are from the GPUs, and how many leases hold them.
func (inv node) measureNICs(pool []adapter, gpus []int, taken []gpu.Device) {
	for i := range pool {
		a := &pool[i]
		a.free = true
		for _, g := range gpus {
			a.far = append(a.far, distanceTo(inv.NICs[a.at], g))
		}
		for _, t := range taken {
			if t.UUID == a.UUID {
				a.held++
				a.free = a.free && !t.Conflicts(a.Device)
			}
		}
	}
}

// nearbyNICs returns the NICs from which auto chooses, and how many it takes: all NICs that are near
// one of the GPUs, or, if there are none, one of the nearest for each GPU.
func nearbyNICs(pool []adapter, gpus int) (near []adapter, wanted int) {
	for _, a := range pool {
		if slices.Min(a.far) <= nearestPath {
			near = append(near, a)
		}
	}
	if near != nil {
		return near, len(near)
	}
	least := slices.Min(pool[0].far)
	for _, a := range pool {
		least = min(least, slices.Min(a.far))
	}
	near = slices.DeleteFunc(slices.Clone(pool), func(a adapter) bool { return slices.Min(a.far) > least })
	return near, min(gpus, len(near))
}

// nearestNICs returns the places, ascending, of the n NICs with the smallest sum of each GPU's
// distance to its nearest NIC; then the smallest sum of all distances, then the fewest other
// holders, then the lowest places.
func nearestNICs(pool []adapter, n int) []int {
	s := nicSearch{pool: pool, n: n, near: make([][]int, n+1)}
	for i := range s.near {
		s.near[i] = slices.Repeat([]int{farthest}, len(pool[0].far))
	}
	if setsUpTo(len(pool), n, exactSets) <= exactSets {
		s.enumerateSets(0, make([]int, 0, n), nicCost{})
		return s.best
	}
	return s.searchGreedily()
}

// nicSearch compares sets of NICs.
type nicSearch struct {
	pool []adapter
	n    int
	near [][]int // by size of a set: how far each GPU is from its nearest member
	best []int
	cost nicCost
}

// nicCost is the cost of a set of NICs; fields are compared in this order.
type nicCost struct{ nearest, all, held int }

func (c nicCost) compareCost(o nicCost) int {
	return cmp.Or(cmp.Compare(c.nearest, o.nearest), cmp.Compare(c.all, o.all), cmp.Compare(c.held, o.held))
}

// enumerateSets compares every set that begins with set and goes on with places from next
// on, in lexicographic order.
func (s *nicSearch) enumerateSets(next int, set []int, cost nicCost) {
	if len(set) == s.n {
		if s.best == nil || cost.compareCost(s.cost) < 0 {
			s.best, s.cost = slices.Clone(set), cost
		}
		return
	}
	for i := next; i <= len(s.pool)-(s.n-len(set)); i++ {
		s.enumerateSets(i+1, append(set, i), s.costWith(len(set), i, cost))
	}
}

// costWith is the cost of a set of that size and one more.
func (s *nicSearch) costWith(size, i int, cost nicCost) nicCost {
	cost.nearest = 0
	for g, far := range s.pool[i].far {
		s.near[size+1][g] = min(s.near[size][g], far)
		cost.nearest += s.near[size+1][g]
		cost.all += far
	}
	cost.held += s.pool[i].held
	return cost
}

// searchGreedily adds the best NIC, one at a time. It is used if there are too many sets to compare.
func (s *nicSearch) searchGreedily() []int {
	var set []int
	var cost nicCost
	for size := range s.n {
		best, least := -1, nicCost{}
		for i := range s.pool {
			if c := s.costWith(size, i, cost); !slices.Contains(set, i) && (best < 0 || c.compareCost(least) < 0) {
				best, least = i, c
			}
		}
		set, cost = append(set, best), s.costWith(size, best, cost)
	}
	slices.Sort(set)
	return set
}

// nicCandidates lists the NICs that could be part of an answer, if the GPUs are among
// those at the places.
func (inv node) nicCandidates(r request.Request, gpus []int) ([]gpu.Device, error) {
	pool, _, err := inv.nicPool(r)
	if err != nil {
		return nil, err
	}
	var could []adapter
	if r.NICs() != request.AutoNICs {
		could = pool
	} else if len(pool) > 0 {
		for _, g := range gpus {
			alone := slices.Clone(pool)
			inv.measureNICs(alone, []int{g}, nil)
			near, _ := nearbyNICs(alone, 1)
			could = append(could, near...)
		}
	}
	slices.SortFunc(could, func(a, b adapter) int { return a.at - b.at })
	var ds []gpu.Device
	for _, a := range could {
		ds = append(ds, a.Device)
	}
	return slices.Compact(ds), nil
}

func nicsBusy(r request.Request, pool []adapter, free, wanted int, taken []gpu.Device) error {
	err := &Error{
		Err: ErrBusy, Request: r.String(), Wanted: wanted, Total: len(pool), Free: free, noun: "NICs",
	}
	for _, a := range pool {
		for _, t := range taken {
			if t.Conflicts(a.Device) && !slices.Contains(err.Busy, t) {
				err.Busy = append(err.Busy, t)
			}
		}
	}
	if r.NICs() == request.AutoNICs || !isNumber(r.NICs()) {
		err.noun = "" // otherwise the request names them
	}
	return err
}

func (inv node) tooManyNICs(r request.Request, active, wanted int) error {
	err := &Error{
		Err: ErrTooMany, Request: r.String(), Wanted: wanted,
		Total: active, Free: active, noun: "NICs with an active port",
	}
	if more := len(inv.NICs) - active; more > 0 {
		err.detail = " (" + strconv.Itoa(more) + " more without)"
	}
	return err
}

func isNumber(w string) bool { return w != "" && strings.Trim(w, "0123456789") == "" }

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// distanceTo returns the distance from the NIC to the GPU at a place, as [pathDistance] counts it.
func distanceTo(n gpu.NIC, place int) int {
	if place >= len(n.Near) {
		return farthest
	}
	return pathDistance(n.Near[place])
}

// pathTo returns the path from the NIC to the GPU at a place, for display.
func pathTo(n gpu.NIC, place int) gpu.Path {
	if place >= len(n.Near) || n.Near[place] == "" {
		return "unknown"
	}
	return n.Near[place]
}

// farthest is the distance of an unknown path.
const farthest = 5

// pathDistance counts paths from the nearest: 0 for PIX, 1 for PXB, …
func pathDistance(p gpu.Path) int {
	paths := [farthest]gpu.Path{gpu.PathPIX, gpu.PathPXB, gpu.PathPHB, gpu.PathNODE, gpu.PathSYS}
	if i := slices.Index(paths[:], p); i >= 0 {
		return i
	}
	return farthest
}
