package match

import (
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// namedDevices returns the devices that the request names, in the node's order.
func (inv node) namedDevices(r request.Request) ([]candidate, error) {
	var cs []candidate
	ids := r.IDs()
	for _, id := range ids {
		c, err := inv.findByID(r, id)
		if err != nil {
			return nil, err
		}
		for i, other := range cs {
			if c.Device == other.Device {
				return nil, contradictionError(r, ids[i]+" and "+id+" are the same device")
			}
			if c.Conflicts(other.Device) {
				return nil, contradictionError(r, ids[i]+" and "+id+" exclude each other: one is a slice of the other")
			}
		}
		cs = append(cs, c)
	}
	order := inv.Devices()
	slices.SortFunc(cs, func(a, b candidate) int {
		return slices.Index(order, a.Device) - slices.Index(order, b.Device)
	})
	return cs, nil
}

// findByID returns the one device with that id.
func (inv node) findByID(r request.Request, id string) (candidate, error) {
	var found []candidate
	var lost []gpu.GPU
	for i, g := range inv.GPUs {
		hits := inv.matchID(i, id)
		if len(hits) > 0 && g.Lost != "" {
			lost = append(lost, g)
		}
		found = append(found, hits...)
	}
	if exact := slices.IndexFunc(found, func(c candidate) bool { return strings.EqualFold(c.UUID, id) }); exact >= 0 {
		found = found[exact : exact+1]
	}
	switch {
	case len(found) > 1:
		return candidate{}, ambiguousError(r, id, found)
	case len(found) == 0:
		return candidate{}, inv.unknownID(r, id)
	}
	if i := slices.IndexFunc(lost, func(g gpu.GPU) bool { return g.UUID == found[0].UUID || g.UUID == found[0].Parent }); i >= 0 {
		return candidate{}, lostByName(r, id, lost[i])
	}
	return found[0], nil
}

// matchID returns the GPU at place i, or those of its slices, that the id names.
func (inv node) matchID(i int, id string) []candidate {
	g := inv.GPUs[i]
	var cs []candidate
	if strconv.Itoa(g.Index) == id || strings.EqualFold(g.PCI, id) || hasUUID(g.UUID, id) {
		cs = append(cs, candidate{Device: g.Device(), gpu: i})
	}
	parent, slice, _ := strings.Cut(id, ":")
	for _, s := range g.Slices {
		inside := strconv.Itoa(s.Index) == slice && hasUUID(g.UUID, parent)
		if d := g.SliceDevice(s); d.Index == id || hasUUID(d.UUID, id) || inside {
			cs = append(cs, candidate{Device: d, gpu: i})
		}
	}
	return cs
}

// hasUUID reports whether id is the UUID or its beginning.
func hasUUID(uuid, id string) bool {
	return strings.Contains(id, "-") && len(uuid) >= len(id) && strings.EqualFold(uuid[:len(id)], id)
}
