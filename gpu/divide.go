package gpu

import (
	"fmt"
	"slices"
)

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
			n.Ports = []Port{{State: portActive}} // it was, when it was leased
			only.NICs, only.ExclusiveNICs = append(only.NICs, n), !leased[i].Shared
		}
	}
	nics, err := only.matchNICs(p, inv.places(own), nil, used)
	if err != nil {
		return nil // gone from the node, or down
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
