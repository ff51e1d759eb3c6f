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

// matchInTurn says what a request gets that stands behind ahead, oldest first, while
// taken is leased. The error is match.Choose's; if it Is ErrBusy it is a *BusyError
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
		// Kept also if it doesn't compete with r: it may with one between the two.
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

// successors is what the node has, to find what took the place of held devices.
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

// addTo adds what the node has in the place of held devices. Of a slice that the node
// doesn't have any more this is the whole GPU: what was cut in its place is made of the same
// hardware, and can have the same capability nodes. A GPU that has the device node of a held
// one is open to the holder, too: it was replaced, or the driver was reloaded.
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

// devicesKeptFor is what must be kept for a waiter: the devices that it would get now,
// or all that it could ever get. That includes those that aren't free: of a GPU
// whose slices are leased, no further slice may go to whoever comes later.
func devicesKeptFor(inv gpu.Inventory, kept, could []gpu.Device, r request.Request) []gpu.Device {
	if !anyFree(could, kept) {
		return could // what Match would find, at less cost
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

// leasedDevices is false if not all of the leases' devices could be read in passing; after
// fill it never is.
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
// ticket isn't there. A request that this version can't read keeps nothing: the
// line holds only what this version or one of the same schema wrote.
func requestsAhead(line []block[waiter], ticket string) []request.Request {
	var rs []request.Request
	for _, w := range line {
		if w.v.ID == ticket {
			break
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

// enqueue puts a waiter behind all who came no later. It isn't always the end: a
// waiter whose entry was lost with a damaged ledger comes back to its place.
func enqueue(line []block[waiter], w waiter) []block[waiter] {
	i := len(line)
	for i > 0 && line[i-1].v.Arrived > w.Arrived {
		i--
	}
	return slices.Insert(line, i, block[waiter]{v: w})
}
