// Package match chooses devices of a node for a request: [Choose], [Candidates] (which
// devices it competes for), [Divide] (a gang's devices by its parts).
//
// Everything is pure: the same inventory, request and taken devices give the same
// answer. Nothing here takes or holds a device: that is package isolation/ledger, which
// calls it under its lock.
package match

import (
	"slices"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// node is an inventory in which devices are chosen.
type node struct{ gpu.Inventory }

// candidate is a device that a request could get.
type candidate struct {
	gpu.Device
	gpu int // place of the GPU, or of a slice's GPU, in Inventory.GPUs
}

// Choose chooses devices for the request among those that don't conflict with
// taken: the best set by topology, the same one for the same input, in the
// node's order. It is pure; its error is a [*Error].
//
// Counts and models match healthy GPUs outside MIG mode. Of these the set with
// the highest sum of pair scores is taken (NVLinks first, then the PCIe path);
// among equals the one that leaves the best set to others, so islands of NVLink
// and NUMA nodes stay whole; then the one with the lowest indexes. With up to 16
// free GPUs, and wherever there are at most 12,870 sets to compare, that is exact;
// beyond, a bounded search finds a good set, not always the best.
//
// Slices are packed: GPUs of which slices are taken already come first. Of the GPUs with all slices
// free, as few as possible are used (unless a gang asks for one profile under several conditions),
// those with the fewest free slices, then the lowest index.
//
// Ids match exactly what they name. The index, UUID or address of a GPU in MIG
// mode means the whole GPU, and excludes its slices. A lost GPU matches nothing.
// CDI devices come after them.
//
// NICs come last. "auto" takes all NICs with an active port that are at most PXB away from one of
// the GPUs; if there are none, the nearest NICs, one per GPU. A count takes the NICs with the
// smallest distances to the GPUs. Names take the named NICs.
//
// For a gang's request these are the parts' devices one after the other, each NIC in
// the first part that it counts for; [Divide] cuts them into parts again.
func Choose(inventory gpu.Inventory, r request.Request, taken []gpu.Device) ([]gpu.Device, error) {
	inv := node{inventory}
	if r.IsGang() {
		return inv.matchGang(r, taken)
	}
	named, err := inv.matchCDI(r, taken)
	if err != nil {
		return nil, err
	}
	if _, _, err := inv.nicPool(r); err != nil {
		return nil, err // first, because waiting doesn't help if the NIC doesn't exist
	}
	shares, err := inv.shareGPUs(r, []request.Request{r}, taken)
	if err != nil {
		return nil, err
	}
	nics, err := inv.matchNICs(r, inv.gpuPlaces(shares[0]), taken, nil)
	if err != nil {
		return nil, err
	}
	return slices.Concat(shares[0], named, nics), nil
}

// conflictingTaken lists the taken devices that conflict with a candidate.
func conflictingTaken(pool []candidate, taken []gpu.Device) []gpu.Device {
	var all []gpu.Device
	wanted, seen := setOf(toDevices(pool)), map[gpu.Device]bool{}
	for _, t := range taken {
		if !seen[t] && wanted.conflictsWith(t.UUID, t.Parent) {
			seen[t], all = true, append(all, t)
		}
	}
	return all
}

// set indexes devices by UUID and parent, so that conflicts are found quickly among hundreds.
type set struct{ uuids, parents map[string]bool }

func setOf(ds []gpu.Device) set {
	s := set{make(map[string]bool, len(ds)), make(map[string]bool, len(ds))}
	for _, d := range ds {
		s.uuids[d.UUID], s.parents[d.Parent] = true, true
	}
	return s
}

// conflictsWith reports whether a device conflicts with one of the set, as [Device.Conflicts] does.
func (s set) conflictsWith(uuid, parent string) bool {
	return s.uuids[uuid] || s.parents[uuid] || s.uuids[parent]
}

// Candidates lists the devices of the node, free or not, that could be part of
// an answer to the request: two requests compete if their candidates conflict.
// It fails, with a [*Error] that isn't [ErrBusy], if the request couldn't be
// granted even if everything were free.
func Candidates(inventory gpu.Inventory, r request.Request) ([]gpu.Device, error) {
	inv := node{inventory}
	if r.IsGang() {
		return inv.gangCandidates(r)
	}
	named, err := inv.cdiDevices(r)
	if err != nil {
		return nil, err
	}
	var gpus []gpu.Device
	if r.GPUs() || r.IsZero() {
		pool, _, err := inv.candidatePool(r, r.Count())
		if err != nil {
			return nil, err
		}
		gpus = toDevices(pool)
	}
	nics, err := inv.nicCandidates(r, inv.gpuPlaces(gpus))
	if err != nil {
		return nil, err
	}
	return slices.Concat(gpus, named, nics), nil
}

func toDevices(cs []candidate) []gpu.Device {
	ds := make([]gpu.Device, len(cs))
	for i, c := range cs {
		ds[i] = c.Device
	}
	return ds
}

// candidatePool returns the candidates in the order of the node, and how many are wanted
// if count are asked for.
func (inv node) candidatePool(r request.Request, count int) (pool []candidate, wanted int, err error) {
	switch {
	case r.IsZero():
		return nil, 0, contradictionError(r, "the request is empty")
	case r.IsByID():
		pool, err = inv.namedDevices(r)
		return pool, len(pool), err
	case r.Profile() != "":
		profile := r.Profile()
		pool = inv.freeSlices(r, func(s *gpu.Slice) bool { return s.Profile == profile })
	case r.IsAll():
		if pool = inv.wholeGPUs(r); len(pool) == 0 {
			pool = inv.freeSlices(r, func(*gpu.Slice) bool { return true })
		}
		wanted = len(pool)
	default:
		pool = inv.wholeGPUs(r)
	}
	wanted = max(wanted, count, 1)
	if len(pool) < wanted {
		return nil, 0, inv.tooMany(r, len(pool), wanted)
	}
	return pool, wanted, nil
}

// wholeGPUs returns the healthy GPUs outside MIG mode that the request may get.
func (inv node) wholeGPUs(r request.Request) []candidate {
	model := r.Model()
	cs := make([]candidate, 0, len(inv.GPUs))
	for i, g := range inv.GPUs {
		if g.Lost == "" && !g.MIG && r.FitsMemory(g.Memory) &&
			(model == "" || gpu.MatchesModel(model, g.Model)) {
			cs = append(cs, candidate{Device: g.Device(), gpu: i})
		}
	}
	return cs
}

// freeSlices returns the slices of healthy GPUs that the request may get.
func (inv node) freeSlices(r request.Request, like func(*gpu.Slice) bool) []candidate {
	n := 0
	for i := range inv.GPUs {
		n += len(inv.GPUs[i].Slices)
	}
	cs := make([]candidate, 0, n)
	for i := range inv.GPUs {
		g := &inv.GPUs[i]
		if g.Lost != "" {
			continue
		}
		for k := range g.Slices {
			if s := &g.Slices[k]; like(s) && r.FitsMemory(s.Memory) {
				cs = append(cs, candidate{Device: g.SliceDevice(*s), gpu: i})
			}
		}
	}
	return cs
}

// freeGPUs returns the places of the whole GPUs that are free.
func (inv node) freeGPUs(taken []gpu.Device) []int {
	var free []int
	for i, g := range inv.GPUs {
		conflicts := func(t gpu.Device) bool { return t.Conflicts(g.Device()) }
		if g.Lost == "" && !g.MIG && !slices.ContainsFunc(taken, conflicts) {
			free = append(free, i)
		}
	}
	return free
}
