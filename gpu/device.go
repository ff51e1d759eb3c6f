package gpu

import "strconv"

// Device returns the whole GPU as something that can be leased.
func (g GPU) Device() Device {
	return Device{UUID: g.UUID, Index: strconv.Itoa(g.Index), Model: g.Model}
}

func (s Slice) device(g GPU) Device {
	return Device{
		UUID: s.UUID, Parent: g.UUID, Profile: s.Profile, Model: g.Model,
		Index: strconv.Itoa(g.Index) + ":" + strconv.Itoa(s.Index),
	}
}
