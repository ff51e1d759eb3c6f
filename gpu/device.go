package gpu

import "strconv"

// Device returns the whole GPU as something that can be leased.
func (g GPU) Device() Device {
	return Device{UUID: g.UUID, Index: strconv.Itoa(g.Index), Model: g.Model}
}

// SliceDevice returns a slice of the GPU as something that can be leased.
func (g GPU) SliceDevice(s Slice) Device {
	return Device{
		UUID: s.UUID, Parent: g.UUID, Profile: s.Profile, Model: g.Model,
		Index: strconv.Itoa(g.Index) + ":" + strconv.Itoa(s.Index),
	}
}
