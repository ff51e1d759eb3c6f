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
		i := slices.IndexFunc(inv.CDI, func(d gpu.Device) bool { return d.UUID == name })
		switch {
		case i >= 0:
			all = append(all, inv.CDI[i])
		case inv.CDI == nil:
			all = append(all, gpu.CDIDevice(name))
		default:
			return nil, unknownError(r, "node has no CDI device "+name, name, deviceNames(inv.CDI))
		}
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

// checkCDIOfParts refuses a gang of which two parts would share a CDI device.
func (inv node) checkCDIOfParts(r request.Request, parts []request.Request) error {
	var before []gpu.Device
	for _, p := range parts {
		devices, err := inv.cdiDevices(p)
		if err != nil {
			return ofRequest(r, err)
		}
		for _, d := range devices {
			if i := slices.IndexFunc(before, d.Conflicts); i >= 0 {
				return contradictionError(r, "two parts of the gang name "+before[i].UUID+" and "+d.UUID+", which share a device node")
			}
		}
		before = append(before, devices...)
	}
	return nil
}
