package gpu

import (
	"fmt"
	"slices"
	"strings"
)

// Divide cuts the devices that Match found for the request, or those of a lease on
// it, into its parts again; the devices of a request without parts are one part's.
// A NIC is in each part that it counts for. It fails if the devices can't be the
// request's.
func (inv Inventory) Divide(r Request, devices []Device) ([][]Device, error) {
	if r.kind != kindGang {
		return [][]Device{devices}, nil
	}
	parts := r.Parts()
	shares, nics := make([][]Device, len(parts)), make([][]Device, len(parts))
	rest := devices
	for i, p := range parts {
		n := p.Count()
		if p.kind == kindAll {
			n = inv.countOfAll(p, parts, rest, i)
		}
		if n += len(p.CDI()); n > len(rest) || slices.ContainsFunc(rest[:n], Device.IsNIC) {
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

// countOfAll is how many of the rest belong to a part i that takes all.
func (inv Inventory) countOfAll(p Request, parts []Request, rest []Device, i int) int {
	left := 0
	for _, d := range rest {
		left += b2n(!d.IsNIC())
	}
	for _, q := range parts[i+1:] {
		if q.kind == kindAll { // several: they are told apart by the node
			pool, _, _ := inv.pool(p)
			return len(pool)
		}
		left -= q.Count() + len(q.CDI())
	}
	return max(left-len(p.CDI()), 0)
}

// divideNICs gives each part its NICs. found are those that come after its devices and
// were in no part before it; where the next parts have nothing but NICs, theirs come
// after the same devices.
func (inv Inventory) divideNICs(parts []Request, shares, found [][]Device) [][]Device {
	nics := make([][]Device, len(parts))
	var before []Device
	for i := 0; i < len(parts); {
		next := i + 1
		for next < len(parts) && len(shares[next]) == 0 {
			next++
		}
		var taken []Device
		last := i
		for k := i; k < next; k++ {
			if parts[k].nics == "" {
				continue
			}
			last = k
			nics[k] = inv.ownNICs(parts[:next], k, shares[k], before, found[i], taken)
			taken = append(taken, nics[k]...)
		}
		for _, d := range found[i] {
			if !slices.Contains(taken, d) { // gone from the node, or chosen in another state of it
				nics[last] = append(nics[last], d)
			}
		}
		before, i = append(before, found[i]...), next
	}
	return nics
}

// ownNICs are those that the words of part k choose among the gang's NICs that are
// found with it or before it. Where some are as good, it is those that were found, in
// their order, and no other part has. A NIC that was leased worked then, unless somebody
// named it: such a one counts if there is no other.
func (inv Inventory) ownNICs(parts []Request, k int, own, before, found, taken []Device) []Device {
	named := func(n NIC) bool {
		name := strings.ToLower(n.Name)
		for i, p := range parts {
			if i != k && slices.Contains(strings.Split(p.nics, "+"), name) {
				return true
			}
		}
		return false
	}
	leased := slices.Concat(found, before)
	var some, all []NIC
	for _, n := range inv.NICs {
		at := slices.IndexFunc(leased, func(d Device) bool { return d.UUID == n.Device(false).UUID })
		if at < 0 {
			continue
		}
		works := n
		works.Ports = []Port{{State: portActive}}
		if all = append(all, works); !named(n) {
			n = works
		}
		some = append(some, n)
	}
	var used []Device // the later, the more often
	for i := range found {
		used = slices.Concat(used, found[i:], before, taken)
	}
	used = slices.Concat(used, before, taken)
	for _, inv.NICs = range [][]NIC{some, all} {
		nics, err := inv.matchNICs(parts[k], inv.places(own), nil, used)
		if err == nil {
			return asLeased(nics, leased)
		}
	}
	return nil
}

// asLeased returns the devices as they are in the lease, shared or not.
func asLeased(nics, leased []Device) []Device {
	for i := range nics {
		nics[i] = leased[slices.IndexFunc(leased, func(d Device) bool { return d.UUID == nics[i].UUID })]
	}
	return nics
}

// FarNICs says in words where nics=auto had to take NICs that aren't near the GPUs,
// of the devices that were matched for a request: GPUDirect RDMA won't be used with
// them by default. It is "" if there is nothing to say.
func (inv Inventory) FarNICs(r Request, devices []Device) string {
	parts := r.Parts()
	if parts == nil {
		parts = []Request{r}
	}
	shares, err := inv.Divide(r, devices)
	if err != nil {
		return ""
	}
	for i, p := range parts {
		gpus := inv.places(shares[i])
		for _, d := range shares[i] {
			n, ok := inv.NIC(d)
			if p.nics != autoNICs || !ok || len(gpus) == 0 {
				continue
			}
			far := slices.MinFunc(gpus, func(a, b int) int { return n.near(a) - n.near(b) })
			if n.near(far) > nearestPath {
				return fmt.Sprintf("no NIC with an active port is near GPU %d: %s is the nearest (%s), too far for GPUDirect RDMA by default",
					inv.GPUs[far].Index, n.Name, n.path(far))
			}
		}
	}
	return ""
}
