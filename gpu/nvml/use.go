package nvml

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/gpu/probe"
)

// Meter measures what is used of devices. It is a [probe.Meter].
type Meter struct{ l *library }

// Meter loads the library and keeps it.
func (s Source) Meter(ctx context.Context) (*Meter, error) {
	l := s.newLibrary(ctx)
	if err := l.open(); err != nil {
		return nil, err
	}
	return &Meter{l}, nil
}

// Close shuts the library down.
func (m *Meter) Close() { m.l.close() }

// Measure measures each device, a GPU or a slice. If a device can't be measured, its Use has the
// error.
func (m *Meter) Measure(uuids []string) []probe.Use {
	all := make([]probe.Use, 0, len(uuids))
	for _, uuid := range uuids {
		u := probe.Use{UUID: uuid}
		if m.l.hung.Load() { // the call that hangs may hold a lock of the driver: each further call would time out too
			u.Error = "not asked, because an earlier call of NVML did not return"
		} else if err := m.measureUse(&u); err != nil {
			u.Error, u.Lost = err.Error(), isReturn(err, nvml.ERROR_GPU_IS_LOST)
		}
		all = append(all, u)
	}
	return all
}

func (m *Meter) measureUse(u *probe.Use) error {
	d, err := callFunction(m.l.caller, "nvmlDeviceGetHandleByUUID", func() (nvml.Device, nvml.Return) {
		return m.l.nvml.DeviceGetHandleByUUID(u.UUID)
	})
	if err != nil {
		return err
	}
	if u.Memory, u.Total, err = m.readMemory(d); err != nil {
		return err
	}
	rates, err := callFunction(m.l.caller, "nvmlDeviceGetUtilizationRates", d.GetUtilizationRates)
	switch {
	case err == nil:
		busy := int(rates.Gpu)
		u.Busy = &busy
	case !isUnsupported(err) && !isReturn(err, nvml.ERROR_INVALID_ARGUMENT): // the library's answer for slices
		return err
	}
	u.Processes = m.readProcesses(d)
	return nil
}

// readMemory returns the used and the total memory in bytes, both 0 for GPUs that share the CPU's
// memory. What the driver keeps for itself isn't used memory; before version 510 it is.
func (m *Meter) readMemory(d nvml.Device) (used, total uint64, err error) {
	second, err := callFunction(m.l.caller, "nvmlDeviceGetMemoryInfo_v2", d.GetMemoryInfo_v2)
	if !isUnsupported(err) {
		return second.Used, second.Total, err
	}
	first, err := callFunction(m.l.caller, "nvmlDeviceGetMemoryInfo", d.GetMemoryInfo)
	if isUnsupported(err) {
		err = nil
	}
	return first.Used, first.Total, err
}

// readProcesses lists the processes that compute on a device, clients of MPS included. Values that
// the driver hides, for instance from users other than root, are left out.
func (m *Meter) readProcesses(d nvml.Device) (all []probe.Process) {
	for function, list := range map[string]func() ([]nvml.ProcessInfo, nvml.Return){
		"nvmlDeviceGetComputeRunningProcesses":    d.GetComputeRunningProcesses,
		"nvmlDeviceGetMPSComputeRunningProcesses": d.GetMPSComputeRunningProcesses,
	} {
		infos, err := callFunction(m.l.caller, function, list)
		if err != nil {
			continue
		}
		for _, i := range infos {
			p := probe.Process{PID: int(i.Pid), Memory: i.UsedGpuMemory}
			if p.Memory == math.MaxUint64 { // NVML_VALUE_NOT_AVAILABLE
				p.Memory = 0
			}
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b probe.Process) int { return cmp.Compare(a.PID, b.PID) })
	return all
}
