package match

import (
	"slices"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// cdiDevices returns those of the host's CDI devices that the request names. If they weren't looked
// up (Inventory.CDI is nil, as for other waiting requests), all named devices count as present.
func (inv node) cdiDevices(r request.Request) ([]gpu.Device, error) {
	var all []gpu.Device
	for _, name := range r.CDI() {
		if inv.CDI != nil && !slices.Contains(inv.CDI, name) {
			return nil, unknownError(r, "node has no CDI device "+name, name, inv.CDI)
		}
		all = append(all, gpu.CDIDevice(name))
	}
	return all, nil
}

// matchCDI chooses the CDI devices of a request, which are requested by name only.
func (inv node) matchCDI(r request.Request, taken []gpu.Device) ([]gpu.Device, error) {
	wanted, err := inv.cdiDevices(r)
	if err != nil {
		return nil, err
	}
	var busy []gpu.Device
	for _, d := range wanted {
		if slices.ContainsFunc(taken, d.Conflicts) {
			busy = append(busy, d)
		}
	}
	if busy != nil {
		return nil, &Error{
			Err: ErrBusy, Request: r.String(), Wanted: len(wanted),
			Total: len(wanted), Free: len(wanted) - len(busy), Busy: busy,
		}
	}
	return wanted, nil
}
