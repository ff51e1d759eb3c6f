package gpu

import (
	"fmt"
	"slices"
)

// matchGang is Match for a gang: the parts' devices one after the other.
func (inv Inventory) matchGang(r Request, taken []Device) ([]Device, error) {
	parts := r.Parts()
	shares, err := inv.shareGPUs(parts, taken)
	if err != nil {
		return nil, ofGang(r, err)
	}
	var all []Device
	for i, p := range parts {
		named, err := inv.matchCDI(p, taken)
		if err != nil {
			return nil, ofGang(r, err)
		}
		nics, err := inv.matchNICs(p, inv.places(shares[i]), taken)
		if err != nil {
			return nil, ofGang(r, err)
		}
		all = append(append(all, shares[i]...), named...)
		for _, n := range nics {
			if !slices.Contains(all, n) {
				all = append(all, n)
			}
		}
	}
	return all, nil
}

// ofGang makes a part's error the gang's.
func ofGang(r Request, err error) error {
	if no, ok := err.(*MatchError); ok { //nolint:errorlint // never wrapped
		no.Request = r.String()
	}
	return err
}

// shareGPUs gives each part GPUs or slices of its own. Parts that ask for the same
// are chosen together.
func (inv Inventory) shareGPUs(parts []Request, taken []Device) ([][]Device, error) {
	shares := make([][]Device, len(parts))
	taken = slices.Clone(taken)
	for i, p := range parts {
		if shares[i] != nil || !p.GPUs() {
			continue
		}
		like := func(q Request) bool {
			q.count, q.nics, q.cdi, q.features = p.count, p.nics, p.cdi, p.features
			return q == p && p.kind != kindIDs && p.kind != kindAll
		}
		total, sum := p, 0
		for _, q := range parts[i:] {
			if like(q) {
				sum += q.count
			}
		}
		if sum > 0 {
			total.count = sum
		}
		ds, err := inv.matchGPUs(total, taken)
		if err != nil {
			return nil, err
		}
		taken = append(taken, ds...)
		if sum == 0 {
			shares[i] = ds
			continue
		}
		for k, q := range parts {
			if k >= i && like(q) {
				shares[k], ds = ds[:q.count:q.count], ds[q.count:]
			}
		}
	}
	return shares, nil
}

// gangCandidates lists what any part could get.
func (inv Inventory) gangCandidates(r Request) ([]Device, error) {
	if _, err := inv.shareGPUs(r.Parts(), nil); err != nil {
		return nil, ofGang(r, err)
	}
	var all []Device
	for _, p := range r.Parts() {
		ds, err := inv.Candidates(p)
		if err != nil {
			return nil, ofGang(r, err)
		}
		for _, d := range ds {
			if !slices.Contains(all, d) {
				all = append(all, d)
			}
		}
	}
	return all, nil
}

// Divide cuts the devices that Match found for the request, or those of a lease on
// it, into its parts again; the devices of a request without parts are one part's.
// A NIC is in each part that it counts for. It fails if the devices can't be the
// request's.
func (inv Inventory) Divide(r Request, devices []Device) ([][]Device, error) {
	if r.kind != kindGang {
		return [][]Device{devices}, nil
	}
	var nics []Device
	for _, d := range devices {
		if d.IsNIC() {
			nics = append(nics, d)
		}
	}
	parts := r.Parts()
	shares := make([][]Device, len(parts))
	rest := slices.DeleteFunc(slices.Clone(devices), Device.IsNIC)
	for i, p := range parts {
		n := p.Count()
		if p.kind == kindAll {
			n = inv.countOfAll(p, parts, len(rest), i)
		}
		if n += len(p.CDI()); n > len(rest) {
			return nil, fmt.Errorf("divide the devices of %s: %d are too few", r, len(devices))
		}
		shares[i], rest = slices.Clone(rest[:n]), rest[n:]
		shares[i] = append(shares[i], inv.ownNICs(p, shares[i], nics)...)
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("divide the devices of %s: %d are too many", r, len(devices))
	}
	return shares, nil
}

// countOfAll is how many of the rest belong to a part i that takes all.
func (inv Inventory) countOfAll(p Request, parts []Request, rest, i int) int {
	others := 0
	for _, q := range parts[i+1:] {
		if q.kind == kindAll { // several: they are told apart by the node
			pool, _, _ := inv.pool(p)
			return len(pool)
		}
		others += q.Count() + len(q.CDI())
	}
	return max(rest-others-len(p.CDI()), 0)
}

// ownNICs are those of the leased NICs that the part's words choose for its GPUs.
func (inv Inventory) ownNICs(p Request, own, leased []Device) []Device {
	only := inv
	only.NICs = nil
	for _, n := range inv.NICs {
		i := slices.IndexFunc(leased, func(d Device) bool { return d.UUID == n.Device(false).UUID })
		if i >= 0 {
			only.NICs, only.ExclusiveNICs = append(only.NICs, n), !leased[i].Shared
		}
	}
	nics, err := only.matchNICs(p, inv.places(own), nil)
	if err != nil {
		return nil // gone from the node, or down
	}
	return nics
}

// places returns where in GPUs the devices' GPUs are, each once.
func (inv Inventory) places(ds []Device) []int {
	var at []int
	for _, d := range ds {
		i := slices.IndexFunc(inv.GPUs, func(g GPU) bool { return g.UUID == d.UUID || g.UUID == d.Parent })
		if i >= 0 && !slices.Contains(at, i) {
			at = append(at, i)
		}
	}
	return at
}
