package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/gpu"
)

// readMIG reads MIG mode and, where it is on, every slice.
func (d device) readMIG() error {
	mode, err := callFunction(d.caller, "nvmlDeviceGetMigMode", func() (int, nvml.Return) {
		current, _, ret := d.nvml.GetMigMode() // the pending mode takes effect at a reset
		return current, ret
	})
	if isUnsupported(err) {
		return nil
	}
	if err != nil {
		return err
	}
	d.out.MIG = mode == nvml.DEVICE_MIG_ENABLE
	if !d.out.MIG {
		return nil
	}
	return d.readSlices()
}

func (d device) readSlices() error {
	most, err := callFunction(d.caller, "nvmlDeviceGetMaxMigDeviceCount", d.nvml.GetMaxMigDeviceCount)
	if err != nil {
		return err
	}
	for i := range most {
		handle, err := callFunction(d.caller, "nvmlDeviceGetMigDeviceHandleByIndex", func() (nvml.Device, nvml.Return) {
			return d.nvml.GetMigDeviceHandleByIndex(i)
		})
		if isNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		s, err := d.readSlice(handle)
		if isNotFound(err) { // destroyed meanwhile
			continue
		}
		if err != nil {
			return err
		}
		s.Index = i
		d.out.Slices = append(d.out.Slices, s)
	}
	return nil
}

// isNotFound reports whether err means that there is no MIG device at the index.
func isNotFound(err error) bool { return isReturn(err, nvml.ERROR_NOT_FOUND) }

func (d device) readSlice(handle nvml.Device) (s gpu.Slice, err error) {
	s.GIMinor, s.CIMinor = -1, -1
	if s.UUID, err = callFunction(d.caller, "nvmlDeviceGetUUID", handle.GetUUID); err != nil {
		return s, err
	}
	if s.GI, err = callFunction(d.caller, "nvmlDeviceGetGpuInstanceId", handle.GetGpuInstanceId); err != nil {
		return s, err
	}
	if s.CI, err = callFunction(d.caller, "nvmlDeviceGetComputeInstanceId", handle.GetComputeInstanceId); err != nil {
		return s, err
	}
	attributes, err := callFunction(d.caller, "nvmlDeviceGetAttributes", handle.GetAttributes)
	if err != nil {
		return s, err
	}
	s.Memory = attributes.MemorySizeMB << 20
	s.Profile, err = d.profileName(handle, s.GI, attributes)
	return s, err
}

// profileName takes the driver's own name of a slice, or puts it together as the
// driver does, for drivers that name all slices after their GPU.
func (d device) profileName(handle nvml.Device, gi int, a nvml.DeviceAttributes) (string, error) {
	name, err := callFunction(d.caller, "nvmlDeviceGetName", handle.GetName)
	if err != nil && !isUnsupported(err) {
		return "", err
	}
	if profile, ok := profileOf(name); ok {
		return profile, nil
	}
	kind, err := d.instanceKind(gi)
	if err != nil {
		return "", err
	}
	return profileName(a, d.out.Memory, kind), nil
}

// instanceKind finds which of the library's GPU instance profiles an instance has.
func (d device) instanceKind(gi int) (int, error) {
	handle, err := callFunction(d.caller, "nvmlDeviceGetGpuInstanceById", func() (nvml.GpuInstance, nvml.Return) {
		return d.nvml.GetGpuInstanceById(gi)
	})
	if err != nil {
		return 0, err
	}
	instance, err := callFunction(d.caller, "nvmlGpuInstanceGetInfo", handle.GetInfo)
	if err != nil {
		return 0, err
	}
	for kind := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		p, err := callFunction(d.caller, "nvmlDeviceGetGpuInstanceProfileInfo", func() (nvml.GpuInstanceProfileInfo, nvml.Return) {
			return d.nvml.GetGpuInstanceProfileInfo(kind)
		})
		if isAbsent(err) { // this model or this library has no such profile
			continue
		}
		if err != nil {
			return 0, err
		}
		if p.Id == instance.ProfileId {
			return kind, nil
		}
	}
	return nvml.GPU_INSTANCE_PROFILE_COUNT, nil
}
