package ledger

import (
	"errors"
	"slices"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
)

// The queue of requests. A request gets no device that an earlier waiting request could use.
// If the earlier request can be served now, the devices that it would get are kept for it;
// otherwise all its candidates are. So small requests cannot overtake a large one for ever,
// at the price of devices that stay free while the large request collects them. Requests
// without common candidates overtake each other. If the ledger is lost, the queue is lost
// too: waiting processes return to their places, but can be overtaken until they have.

// matchInTurn returns the devices for r, if the requests in ahead, oldest first, precede it in the
// queue and taken is leased. The error is match.Choose's; if it Is ErrBusy it is a *BusyError
// without its holders. It is pure.
func matchInTurn(inv gpu.Inventory, taken []gpu.Device, ahead []request.Request, r request.Request) ([]gpu.Device, error) {
	kept, rivals := newSuccessors(inv).addTo(taken), 0
	for _, o := range inv.Occupied {
		kept = append(kept, o.Device)
	}
	var candidates []gpu.Device
	if len(ahead) > 0 {
		var err error
		if candidates, err = match.Candidates(inv, r); err != nil {
			return nil, err
		}
	}
	for _, a := range ahead {
		could, err := match.Candidates(inv, a)
		if err != nil {
			continue // it can never be granted, so it keeps nothing
		}
		if overlap(could, candidates) {
			rivals++
		}
		// Devices are kept for a even if a doesn't compete with r: it may compete with a request
		// between the two.
		for _, d := range devicesKeptFor(inv, kept, could, a) {
			if !slices.Contains(kept, d) {
				kept = append(kept, d)
			}
		}
	}
	devices, err := match.Choose(inv, r, kept)
	var no *match.Error
	if errors.As(err, &no) && errors.Is(err, ErrBusy) {
		return nil, &BusyError{
			Request: r.String(), Wanted: no.Wanted, Free: no.Free, Total: no.Total, Ahead: rivals,
		}
	}
	return devices, err
}

// successors indexes the node's devices, to find those that replaced leased devices.
type successors struct {
	uuids map[string]bool       // of GPUs and slices
	nodes map[string]gpu.Device // GPUs by device node
}

func newSuccessors(inv gpu.Inventory) successors {
	s := successors{uuids: map[string]bool{}, nodes: map[string]gpu.Device{}}
	for _, g := range inv.GPUs {
		s.uuids[g.UUID] = true
		for _, slice := range g.Slices {
			s.uuids[slice.UUID] = true
		}
		d := g.Device()
		s.nodes[d.Node] = d
	}
	return s
}

// addTo adds to taken the devices that replaced leased ones. If a leased slice no longer exists, its
// whole GPU counts as taken: new slices of that GPU share its hardware and may have the same
// capability nodes. A GPU with the device node of a leased GPU that is gone counts as well, because
// the holder can open that node.
func (s successors) addTo(taken []gpu.Device) []gpu.Device {
	kept := slices.Clone(taken)
	for _, d := range taken {
		if !s.uuids[d.UUID] && d.Parent != "" {
			kept = append(kept, gpu.Device{UUID: d.Parent})
		}
		if g := s.nodes[d.Node]; g.HasNodeOf(d) {
			kept = append(kept, g)
		}
	}
	return kept
}

// devicesKeptFor returns the devices to keep for a waiting request: those that it would get now, or
// else all its candidates, including devices that are leased. If it waits for a GPU whose slices are
// leased, later requests must not get further slices of that GPU.
func devicesKeptFor(inv gpu.Inventory, kept, could []gpu.Device, r request.Request) []gpu.Device {
	if !anyFree(could, kept) {
		return could // the same as Choose would find, but cheaper
	}
	if devices, err := match.Choose(inv, r, kept); err == nil {
		return devices
	}
	return could
}

func anyFree(could, kept []gpu.Device) bool {
	return slices.ContainsFunc(could, func(d gpu.Device) bool { return !slices.ContainsFunc(kept, d.Conflicts) })
}

func overlap(a, b []gpu.Device) bool {
	return slices.ContainsFunc(a, func(d gpu.Device) bool { return slices.ContainsFunc(b, d.Conflicts) })
}

// conflictingLeases returns the leases on the request's candidates, oldest first.
func conflictingLeases(inv gpu.Inventory, leases []record, candidates []gpu.Device) []Lease {
	var hs []Lease
	now := newSuccessors(inv)
	for _, l := range leases {
		if overlap(now.addTo(l.v.Devices), candidates) {
			hs = append(hs, l.v.clone())
		}
	}
	slices.SortStableFunc(hs, func(a, b Lease) int { return a.Since.Compare(b.Since) })
	return hs
}

// leasedDevices returns the devices of all leases. ok is false if a lease has to be decoded first;
// after readAllLeases it is always true.
func leasedDevices(leases []record) (ds []gpu.Device, ok bool) {
	for _, l := range leases {
		held, ok := l.devices()
		if !ok {
			return nil, false
		}
		ds = append(ds, held...)
	}
	return ds, true
}

// requestsAhead returns the requests in the queue ahead of a ticket, or all if the
// ticket isn't there. It skips requests that this version can't read: all versions of
// one schema write the same requests. It also skips the requests of halted processes (^Z),
// which keep their places in the queue until they continue; unless deep is set none is examined.
func (l *Ledger) requestsAhead(me self, queue []block[waiter], ticket string, deep bool) []request.Request {
	var rs []request.Request
	for _, w := range queue {
		if w.v.ID == ticket {
			break
		}
		if deep && isHalted(l.world, me, w.v) {
			continue
		}
		if r, err := request.Parse(w.v.Request); err == nil {
			rs = append(rs, r)
		}
	}
	return rs
}

func findTicket(line []block[waiter], id string) int {
	return slices.IndexFunc(line, func(w block[waiter]) bool { return w.v.ID == id })
}

// enqueue inserts a waiter by its arrival. The position isn't always the end: a waiter whose entry
// was lost with a damaged ledger returns to its former position.
func enqueue(line []block[waiter], w waiter) []block[waiter] {
	i := len(line)
	for i > 0 && line[i-1].v.Arrived > w.Arrived {
		i--
	}
	return slices.Insert(line, i, block[waiter]{v: w})
}
