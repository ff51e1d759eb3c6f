package gpu

import (
	"fmt"
	"slices"
)

// matchGang is Match for a gang: the parts' devices one after the other.
func (inv Inventory) matchGang(r Request, taken []Device) ([]Device, error) {
	parts := r.Parts()
	for _, p := range parts {
		if _, _, err := inv.nicPool(p); err != nil {
			return nil, ofRequest(r, err)
		}
		if _, err := inv.matchCDI(p, taken); err != nil {
			return nil, ofRequest(r, err)
		}
	}
	shares, err := inv.shareGPUs(r, parts, taken)
	if err != nil {
		return nil, err
	}
	nics, err := inv.gangNICs(parts, shares, taken)
	if err != nil {
		return nil, ofRequest(r, err)
	}
	var all []Device
	for i, p := range parts {
		all = append(all, shares[i]...)
		for _, name := range p.CDI() {
			all = append(all, CDIDevice(name))
		}
		for _, n := range nics[i] {
			if !slices.Contains(all, n) {
				all = append(all, n)
			}
		}
	}
	return all, nil
}

// gangNICs chooses NICs for each part. Where all that auto would choose for a part
// are others', the gang does with what its other parts get.
func (inv Inventory) gangNICs(parts []Request, shares [][]Device, taken []Device) ([][]Device, error) {
	nics := make([][]Device, len(parts))
	var used []Device
	var busy error
	for i, p := range parts {
		var err error
		nics[i], err = inv.matchNICs(p, inv.places(shares[i]), taken, used)
		switch {
		case err == nil:
			used = append(used, nics[i]...)
		case p.nics != autoNICs:
			return nil, err
		default:
			busy = err
		}
	}
	if used == nil && busy != nil {
		return nil, busy
	}
	return nics, nil
}

// gangCandidates lists what any part could get.
func (inv Inventory) gangCandidates(r Request) ([]Device, error) {
	if _, _, _, err := inv.possible(r, r.Parts()); err != nil {
		return nil, err
	}
	var all []Device
	for _, p := range r.Parts() {
		ds, err := inv.Candidates(p)
		if err != nil {
			return nil, ofRequest(r, err)
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
	var nics, used []Device
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
		own := inv.ownNICs(p, shares[i], nics, used)
		shares[i], used = append(shares[i], own...), append(used, own...)
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
func (inv Inventory) ownNICs(p Request, own, leased, used []Device) []Device {
	only := inv
	only.NICs = nil
	for _, n := range inv.NICs {
		i := slices.IndexFunc(leased, func(d Device) bool { return d.UUID == n.Device(false).UUID })
		if i >= 0 {
			only.NICs, only.ExclusiveNICs = append(only.NICs, n), !leased[i].Shared
		}
	}
	nics, err := only.matchNICs(p, inv.places(own), nil, used)
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
