package nvml

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/gpu/probe"
)

// device is one GPU while it is read.
type device struct {
	caller
	nvml nvml.Device
	out  *probe.Reading
}

// readGPU reads the GPU at an index. It keeps what was read before the first
// failure, identity first, so that a lost GPU can be named.
func (l *library) readGPU(index int) probe.Reading {
	handle, err := callFunction(l.withLongerLimit(), "nvmlDeviceGetHandleByIndex", func() (nvml.Device, nvml.Return) {
		return l.nvml.DeviceGetHandleByIndex(index)
	})
	out := probe.Reading{GPU: probe.Lost(index, "")}
	if err != nil {
		out.Lost = err.Error()
		return out
	}
	d := device{caller: l.caller, nvml: handle, out: &out}
	for _, step := range []func() error{
		d.readPCI, d.readUUID, d.readMinor, d.readName, d.readComputeCapability, d.readArchitecture, d.readMemory, d.readMIG, d.readLinks,
	} {
		if err := step(); err != nil {
			out.Lost = err.Error()
			break
		}
	}
	return out
}

func (d device) readPCI() error {
	info, err := callFunction(d.caller, "nvmlDeviceGetPciInfo", d.nvml.GetPciInfo)
	if err != nil {
		return err
	}
	if d.out.PCI, err = sysfsAddress(info); err != nil {
		return err
	}
	d.out.UUID = "LOST-" + d.out.PCI // replaced below, when the GPU's own is read
	return nil
}

func (d device) readUUID() error {
	uuid, err := callFunction(d.caller, "nvmlDeviceGetUUID", d.nvml.GetUUID)
	if err == nil {
		d.out.UUID = uuid
	}
	return err
}

func (d device) readMinor() error {
	minor, err := callFunction(d.caller, "nvmlDeviceGetMinorNumber", d.nvml.GetMinorNumber)
	if isUnsupported(err) { // where there are no device nodes (WSL)
		return nil
	}
	if err == nil {
		d.out.Minor = minor
	}
	return err
}

func (d device) readName() (err error) {
	d.out.Model, err = callFunction(d.caller, "nvmlDeviceGetName", d.nvml.GetName)
	return err
}

func (d device) readComputeCapability() error {
	type version struct{ major, minor int }
	v, err := callFunction(d.caller, "nvmlDeviceGetCudaComputeCapability", func() (version, nvml.Return) {
		major, minor, ret := d.nvml.GetCudaComputeCapability()
		return version{major, minor}, ret
	})
	if err == nil {
		d.out.ComputeCapability = fmt.Sprintf("%d.%d", v.major, v.minor)
	}
	return err
}

func (d device) readArchitecture() error {
	a, err := callFunction(d.caller, "nvmlDeviceGetArchitecture", d.nvml.GetArchitecture)
	if isUnsupported(err) {
		return nil
	}
	d.out.Architecture = architectureName(a)
	return err
}

// architectureName returns "" for an architecture that is newer than go-nvml's header.
func architectureName(a nvml.DeviceArchitecture) string {
	switch a {
	case nvml.DEVICE_ARCH_KEPLER:
		return "kepler"
	case nvml.DEVICE_ARCH_MAXWELL:
		return "maxwell"
	case nvml.DEVICE_ARCH_PASCAL:
		return "pascal"
	case nvml.DEVICE_ARCH_VOLTA:
		return "volta"
	case nvml.DEVICE_ARCH_TURING:
		return "turing"
	case nvml.DEVICE_ARCH_AMPERE:
		return "ampere"
	case nvml.DEVICE_ARCH_ADA:
		return "ada"
	case nvml.DEVICE_ARCH_HOPPER:
		return "hopper"
	case nvml.DEVICE_ARCH_BLACKWELL:
		return "blackwell"
	}
	return ""
}

func (d device) readMemory() error {
	m, err := callFunction(d.caller, "nvmlDeviceGetMemoryInfo", d.nvml.GetMemoryInfo)
	if isUnsupported(err) { // GPUs that share the CPU's memory report none
		return nil
	}
	d.out.Memory = m.Total
	return err
}

// sysfsAddress puts a PCI bus id of the library, "00000000:1B:00.0", into the form of sysfs.
func sysfsAddress(info nvml.PciInfo) (string, error) {
	var id strings.Builder
	for _, c := range info.BusId {
		if c == 0 {
			break
		}
		id.WriteByte(byte(c))
	}
	return parseAddress(id.String())
}

func parseAddress(id string) (string, error) {
	domain, rest, _ := strings.Cut(id, ":")
	bus, rest, _ := strings.Cut(rest, ":")
	slot, function, _ := strings.Cut(rest, ".")
	var n [4]uint64
	for i, part := range []struct {
		hex  string
		bits int
	}{{domain, 32}, {bus, 8}, {slot, 5}, {function, 3}} {
		var err error
		if n[i], err = strconv.ParseUint(part.hex, 16, part.bits); err != nil {
			return "", fmt.Errorf("parse PCI bus id %q: want domain:bus:device.function", id)
		}
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", n[0], n[1], n[2], n[3]), nil
}
