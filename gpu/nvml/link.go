package nvml

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// readLinks counts the GPU's active NVLinks by what is at their other end.
func (d device) readLinks() error {
	for link := range nvml.NVLINK_MAX_LINKS {
		state, err := callFunction(d.caller, "nvmlDeviceGetNvLinkState", func() (nvml.EnableState, nvml.Return) {
			return d.nvml.GetNvLinkState(link)
		})
		if isAbsent(err) {
			continue
		}
		if err != nil {
			return err
		}
		if state != nvml.FEATURE_ENABLED {
			continue
		}
		if err := d.readLink(link); err != nil {
			return err
		}
	}
	return nil
}

// isAbsent reports whether err means that the GPU has no link of that number, or no active one.
func isAbsent(err error) bool {
	return isUnsupported(err) || isReturn(err, nvml.ERROR_INVALID_ARGUMENT)
}

func (d device) readLink(readLink int) error {
	kind, err := callFunction(d.caller, "nvmlDeviceGetNvLinkRemoteDeviceType", func() (nvml.IntNvLinkDeviceType, nvml.Return) {
		return d.nvml.GetNvLinkRemoteDeviceType(readLink)
	})
	switch {
	case isUnsupported(err): // libraries before 470 have no such function; readPeer asks for the address
	case err != nil:
		return err
	case kind == nvml.NVLINK_DEVICE_TYPE_SWITCH:
		d.out.SwitchLinks++
		return nil
	case kind != nvml.NVLINK_DEVICE_TYPE_GPU:
		return nil
	}
	return d.readPeer(readLink)
}

func (d device) readPeer(link int) error {
	info, err := callFunction(d.caller, "nvmlDeviceGetNvLinkRemotePciInfo", func() (nvml.PciInfo, nvml.Return) {
		return d.nvml.GetNvLinkRemotePciInfo(link)
	})
	if isAbsent(err) { // a virtual machine doesn't see the other end
		return nil
	}
	if err != nil {
		return err
	}
	pci, err := sysfsAddress(info)
	if err != nil {
		return err
	}
	if d.out.PeerLinks == nil {
		d.out.PeerLinks = map[string]int{}
	}
	d.out.PeerLinks[pci]++
	return nil
}
