package nvml

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// links counts the GPU's active NVLinks by what is at their other end.
func (d device) links() error {
	for link := range nvml.NVLINK_MAX_LINKS {
		state, err := call(d.caller, "nvmlDeviceGetNvLinkState", func() (nvml.EnableState, nvml.Return) {
			return d.nvml.GetNvLinkState(link)
		})
		if absent(err) {
			continue
		}
		if err != nil {
			return err
		}
		if state != nvml.FEATURE_ENABLED {
			continue
		}
		if err := d.link(link); err != nil {
			return err
		}
	}
	return nil
}

// absent: the GPU or the library has nothing of that number, or not now.
func absent(err error) bool {
	return unsupported(err) || is(err, nvml.ERROR_INVALID_ARGUMENT)
}

func (d device) link(link int) error {
	kind, err := call(d.caller, "nvmlDeviceGetNvLinkRemoteDeviceType", func() (nvml.IntNvLinkDeviceType, nvml.Return) {
		return d.nvml.GetNvLinkRemoteDeviceType(link)
	})
	switch {
	case unsupported(err): // libraries before 470: the address alone must do
	case err != nil:
		return err
	case kind == nvml.NVLINK_DEVICE_TYPE_SWITCH:
		d.out.SwitchLinks++
		return nil
	case kind != nvml.NVLINK_DEVICE_TYPE_GPU:
		return nil
	}
	return d.peer(link)
}

func (d device) peer(link int) error {
	info, err := call(d.caller, "nvmlDeviceGetNvLinkRemotePciInfo", func() (nvml.PciInfo, nvml.Return) {
		return d.nvml.GetNvLinkRemotePciInfo(link)
	})
	if absent(err) { // a virtual machine doesn't see the other end
		return nil
	}
	if err != nil {
		return err
	}
	pci, err := address(info)
	if err != nil {
		return err
	}
	if d.out.PeerLinks == nil {
		d.out.PeerLinks = map[string]int{}
	}
	d.out.PeerLinks[pci]++
	return nil
}
