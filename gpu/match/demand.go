package match

import (
	"slices"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// demand groups the parts of a request that ask for the same devices. A request that isn't a gang's
// is one part.
type demand struct {
	request.Request
	parts []int // which of the parts
	sizes []int // how many devices each of them gets
	count int   // how many all get
	auto  bool  // one of the parts wants the NICs near its GPUs
	pool  []candidate
	// chosen are the devices for all of them, in the node's order.
	chosen []candidate
}

// shareGPUs gives each part of the request GPUs or slices of its own, in the node's order: all or
// none. Its error Is ErrBusy only if the request could be granted without the current leases.
func (inv node) shareGPUs(r request.Request, parts []request.Request, taken []gpu.Device) ([][]gpu.Device, error) {
	demands, open, named, err := inv.checkPossible(r, parts)
	if err != nil {
		return nil, err
	}
	held := setOf(taken)
	if err := takeNamed(r, demands, taken, held); err != nil {
		return nil, err
	}
	free := freeOf(open, held)
	if s := newSupply(free); !s.servesRest() {
		return nil, busyError(r, s, open, taken)
	}
	inv.chooseForDemands(free, named, taken)
	return inv.divideAmongParts(demands, free, len(parts)), nil
}

// checkPossible returns all demands, the demands that name no devices (open), and the devices that
// the others name. It fails if the request couldn't be granted even if nothing were taken.
func (inv node) checkPossible(r request.Request, parts []request.Request) (demands, open []*demand, named []gpu.Device, err error) {
	if err = inv.checkCDIOfParts(r, parts); err != nil {
		return nil, nil, nil, err
	}
	if demands, err = inv.groupDemands(r, parts); err != nil {
		return nil, nil, nil, err
	}
	if named, err = collectNamed(r, demands); err != nil {
		return nil, nil, nil, err
	}
	open = withoutNamed(demands, named)
	if s := newSupply(open); !s.servesRest() {
		return nil, nil, nil, shortageError(r, s, named)
	}
	return demands, open, named, nil
}

// groupDemands groups the parts that ask for GPUs.
func (inv node) groupDemands(r request.Request, parts []request.Request) ([]*demand, error) {
	var all []*demand
	for i, p := range parts {
		if !p.GPUs() && !p.IsZero() {
			continue
		}
		auto := p.NICs() == request.AutoNICs
		size := max(p.Count(), 1)
		p = p.Single()
		k := slices.IndexFunc(all, func(d *demand) bool { return d.Request == p })
		if k < 0 {
			k, all = len(all), append(all, &demand{Request: p})
		}
		d := all[k]
		d.parts, d.sizes, d.count = append(d.parts, i), append(d.sizes, size), d.count+size
		d.auto = d.auto || auto
	}
	for _, d := range all {
		pool, wanted, err := inv.candidatePool(d.Request, d.count)
		if err != nil {
			return nil, ofRequest(r, err)
		}
		if d.pool = pool; d.IsAll() {
			d.count = wanted * len(d.parts)
			for i := range d.sizes {
				d.sizes[i] = wanted
			}
		}
	}
	return all, nil
}

// ofRequest turns the error of one part into an error of the whole request.
func ofRequest(r request.Request, err error) error {
	if no, ok := err.(*Error); ok { //nolint:errorlint // never wrapped
		no.Request = r.String()
	}
	return err
}

// collectNamed returns the devices that are asked for by name, all of which have to
// be granted. They may not exclude each other.
func collectNamed(r request.Request, demands []*demand) ([]gpu.Device, error) {
	var named []gpu.Device
	for _, d := range demands {
		if !d.IsByID() {
			continue
		}
		for _, c := range d.pool {
			if i := slices.IndexFunc(named, c.Conflicts); i >= 0 {
				return nil, contradictionError(r, "two parts of the gang name "+conflictText(named[i], c.Device))
			}
		}
		named = append(named, toDevices(d.pool)...)
	}
	return named, nil
}

func conflictText(a, b gpu.Device) string {
	if a == b {
		return deviceNames([]gpu.Device{a})[0]
	}
	return strings.Join(deviceNames([]gpu.Device{a, b}), " and ") + ", of which one is a slice of the other"
}

// withoutNamed returns the demands that name no devices, without the named devices in their pools.
func withoutNamed(demands []*demand, named []gpu.Device) []*demand {
	forced := setOf(named)
	var open []*demand
	for _, d := range demands {
		if d.IsByID() {
			continue
		}
		left := *d
		if named != nil {
			left.pool = excludeTaken(d.pool, forced)
		}
		open = append(open, &left)
	}
	return open
}

func excludeTaken(pool []candidate, s set) []candidate {
	left := make([]candidate, 0, len(pool))
	for _, c := range pool {
		if !s.conflictsWith(c.UUID, c.Parent) {
			left = append(left, c)
		}
	}
	return left
}

func freeOf(open []*demand, held set) []*demand {
	free := make([]*demand, len(open))
	for i, d := range open {
		left := *d
		left.pool = excludeTaken(d.pool, held)
		free[i] = &left
	}
	return free
}

// takeNamed assigns the named devices to their demands. The error lists the devices that are held.
func takeNamed(r request.Request, demands []*demand, taken []gpu.Device, held set) error {
	for _, d := range demands {
		if !d.IsByID() {
			continue
		}
		if free := excludeTaken(d.pool, held); len(free) < d.count {
			return &Error{
				Err: ErrBusy, Request: r.String(), Wanted: d.count,
				Total: d.count, Free: len(free), Busy: conflictingTaken(d.pool, taken),
			}
		}
		d.chosen = d.pool
	}
	return nil
}

// shortageError is the error of demands that the node can't meet together.
func shortageError(r request.Request, s *supply, named []gpu.Device) error {
	wanted, total := s.countShortage()
	detail := ""
	if len(named) > 0 {
		detail = " beside the named ones"
	}
	return &Error{
		Err: ErrTooMany, Request: r.String(), Wanted: wanted,
		Total: total, Free: total, noun: s.nounsOfShortage(), detail: detail,
	}
}

// busyError is the error of demands that could be met if nothing were taken.
func busyError(r request.Request, s *supply, open []*demand, taken []gpu.Device) error {
	wanted, free := s.countShortage()
	var pool []candidate
	for i, d := range open {
		if !s.short[i] {
			continue
		}
		for _, c := range d.pool {
			if !slices.Contains(pool, c) {
				pool = append(pool, c)
			}
		}
	}
	return &Error{
		Err: ErrBusy, Request: r.String(), Wanted: wanted,
		Total: len(pool), Free: free, Busy: conflictingTaken(pool, taken), noun: s.nounsOfShortage(),
	}
}
