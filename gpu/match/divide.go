package match

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// Divide cuts the devices that Choose found for the request, or those of a lease on it, into its
// parts again; the devices of a request without parts are one part's. A NIC is in each part that it
// counts for. It fails if the devices don't fit the request.
func Divide(inventory gpu.Inventory, r request.Request, devices []gpu.Device) ([][]gpu.Device, error) {
	inv := node{inventory}
	if !r.IsGang() {
		return [][]gpu.Device{devices}, nil
	}
	parts := r.Parts()
	shares, nics := make([][]gpu.Device, len(parts)), make([][]gpu.Device, len(parts))
	rest := devices
	for i, p := range parts {
		n := p.Count()
		if p.IsAll() {
			n = inv.countOfAll(p, parts, rest, i)
		}
		if n += len(p.CDI()); n > len(rest) || slices.ContainsFunc(rest[:n], gpu.Device.IsNIC) {
			return nil, fmt.Errorf("divide the devices of %s: %d are too few", r, len(devices))
		}
		shares[i], rest = slices.Clone(rest[:n]), rest[n:]
		for len(rest) > 0 && rest[0].IsNIC() {
			nics[i], rest = append(nics[i], rest[0]), rest[1:]
		}
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("divide the devices of %s: %d are too many", r, len(devices))
	}
	for i, own := range inv.divideNICs(parts, shares, nics) {
		shares[i] = append(shares[i], own...)
	}
	return shares, nil
}

// countOfAll returns how many of the remaining devices belong to part i, which asks for "all".
func (inv node) countOfAll(p request.Request, parts []request.Request, rest []gpu.Device, i int) int {
	left := 0
	for _, d := range rest {
		left += boolToInt(!d.IsNIC())
	}
	for _, q := range parts[i+1:] {
		if q.IsAll() { // several parts ask for "all": the node decides how many devices fit part i
			pool, _, _ := inv.candidatePool(p, p.Count())
			return len(pool)
		}
		left -= q.Count() + len(q.CDI())
	}
	return max(left-len(p.CDI()), 0)
}

// divideNICs gives each part its NICs. found are those that come after its devices and
// were in no part before it; where the next parts have nothing but NICs, theirs come
// after the same devices.
func (inv node) divideNICs(parts []request.Request, shares, found [][]gpu.Device) [][]gpu.Device {
	nics := make([][]gpu.Device, len(parts))
	var before []gpu.Device
	for i := 0; i < len(parts); {
		next := i + 1
		for next < len(parts) && len(shares[next]) == 0 {
			next++
		}
		var taken []gpu.Device
		last := i
		for k := i; k < next; k++ {
			if parts[k].NICs() == "" {
				continue
			}
			last = k
			nics[k] = inv.ownNICs(parts[:next], k, shares[k], before, found[i], taken)
			taken = append(taken, nics[k]...)
		}
		for _, d := range found[i] {
			if !slices.Contains(taken, d) { // the NIC is gone, or the node's state at the time of the choice was different
				nics[last] = append(nics[last], d)
			}
		}
		before, i = append(before, found[i]...), next
	}
	return nics
}

// ownNICs returns the NICs of part k of a gang, among those in found and before. It matches the
// part's words again. NICs in found come first, in their order, and those of other parts last. NICs
// count as active even if their ports are down now, because they were active when they were leased.
// NICs that another part names may have been inactive then; they count as active only in a second
// attempt.
func (inv node) ownNICs(parts []request.Request, k int, own, before, found, taken []gpu.Device) []gpu.Device {
	named := func(n gpu.NIC) bool {
		name := strings.ToLower(n.Name)
		for i, p := range parts {
			if i != k && slices.Contains(strings.Split(p.NICs(), "+"), name) {
				return true
			}
		}
		return false
	}
	leased := slices.Concat(found, before)
	var some, all []gpu.NIC
	for _, n := range inv.NICs {
		at := slices.IndexFunc(leased, func(d gpu.Device) bool { return d.UUID == n.Device(false).UUID })
		if at < 0 {
			continue
		}
		works := n
		works.Ports = []gpu.Port{{State: gpu.PortActive}}
		if all = append(all, works); !named(n) {
			n = works
		}
		some = append(some, n)
	}
	var used []gpu.Device // NICs found later are listed more often, so earlier ones are preferred
	for i := range found {
		used = slices.Concat(used, found[i:], before, taken)
	}
	used = slices.Concat(used, before, taken)
	for _, inv.NICs = range [][]gpu.NIC{some, all} {
		nics, err := inv.matchNICs(parts[k], inv.gpuPlaces(own), nil, used)
		if err == nil {
			return asLeased(nics, leased)
		}
	}
	return nil
}

// asLeased returns the devices as they are in the lease, shared or not.
func asLeased(nics, leased []gpu.Device) []gpu.Device {
	for i := range nics {
		nics[i] = leased[slices.IndexFunc(leased, func(d gpu.Device) bool { return d.UUID == nics[i].UUID })]
	}
	return nics
}

// DescribeFarNICs says in words where nics=auto had to take NICs that aren't near the GPUs,
// of the devices that were matched for a request: GPUDirect RDMA won't be used with
// them by default. It is "" if there is nothing to say.
func DescribeFarNICs(inventory gpu.Inventory, r request.Request, devices []gpu.Device) string {
	inv := node{inventory}
	parts := r.Parts()
	if parts == nil {
		parts = []request.Request{r}
	}
	shares, err := Divide(inventory, r, devices)
	if err != nil {
		return ""
	}
	for i, p := range parts {
		gpus := inv.gpuPlaces(shares[i])
		for _, d := range shares[i] {
			n, ok := inv.NIC(d)
			if p.NICs() != request.AutoNICs || !ok || len(gpus) == 0 {
				continue
			}
			far := slices.MinFunc(gpus, func(a, b int) int { return distanceTo(n, a) - distanceTo(n, b) })
			if distanceTo(n, far) > nearestPath {
				return fmt.Sprintf("no NIC with an active port is near GPU %d: %s is the nearest (%s), too far for GPUDirect RDMA by default",
					inv.GPUs[far].Index, n.Name, pathTo(n, far))
			}
		}
	}
	return ""
}
