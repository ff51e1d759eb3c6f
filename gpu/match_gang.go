package gpu

import "slices"

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
