package match

import (
	"slices"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// matchGang is Choose for a gang: the parts' devices one after the other.
func (inv node) matchGang(r request.Request, taken []gpu.Device) ([]gpu.Device, error) {
	parts := r.Parts()
	named := make([][]gpu.Device, len(parts))
	for i, p := range parts {
		if _, _, err := inv.nicPool(p); err != nil {
			return nil, ofRequest(r, err)
		}
		var err error
		if named[i], err = inv.matchCDI(p, taken); err != nil {
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
	var all []gpu.Device
	for i := range parts {
		all = append(append(all, shares[i]...), named[i]...)
		for _, n := range nics[i] {
			if !slices.Contains(all, n) {
				all = append(all, n)
			}
		}
	}
	return all, nil
}

// gangNICs chooses NICs for each part. If nics=auto finds no free NIC for a part, the part gets none
// and the gang uses the NICs of its other parts. It is an error if no part gets one, or if a part that
// asks for NICs by count or name gets none.
func (inv node) gangNICs(parts []request.Request, shares [][]gpu.Device, taken []gpu.Device) ([][]gpu.Device, error) {
	nics := make([][]gpu.Device, len(parts))
	var used []gpu.Device
	var busy error
	for i, p := range parts {
		var err error
		nics[i], err = inv.matchNICs(p, inv.gpuPlaces(shares[i]), taken, used)
		switch {
		case err == nil:
			used = append(used, nics[i]...)
		case p.NICs() != request.AutoNICs:
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

// gangCandidates lists the devices that any of the parts could get.
func (inv node) gangCandidates(r request.Request) ([]gpu.Device, error) {
	if _, _, _, err := inv.checkPossible(r, r.Parts()); err != nil {
		return nil, err
	}
	var all []gpu.Device
	for _, p := range r.Parts() {
		ds, err := Candidates(inv.Inventory, p)
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

// gpuPlaces returns where in GPUs the devices' GPUs are, each once.
func (inv node) gpuPlaces(ds []gpu.Device) []int {
	var at []int
	for _, d := range ds {
		i := slices.IndexFunc(inv.GPUs, func(g gpu.GPU) bool { return g.UUID == d.UUID || g.UUID == d.Parent })
		if i >= 0 && !slices.Contains(at, i) {
			at = append(at, i)
		}
	}
	return at
}
