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

// read reads the GPU at an index. It keeps what was read before the first
// failure, identity first, so that a lost GPU can be named.
func (l *library) read(index int) probe.Reading {
	handle, err := call(l.patient(), "nvmlDeviceGetHandleByIndex", func() (nvml.Device, nvml.Return) {
		return l.nvml.DeviceGetHandleByIndex(index)
	})
	out := probe.Reading{GPU: probe.Lost(index, "")}
	if err != nil {
		out.Lost = err.Error()
		return out
	}
	d := device{caller: l.caller, nvml: handle, out: &out}
	for _, step := range []func() error{
		d.pci, d.uuid, d.minor, d.name, d.compute, d.architecture, d.memory, d.mig, d.links,
	} {
		if err := step(); err != nil {
			out.Lost = err.Error()
			break
		}
	}
	return out
}

func (d device) pci() error {
	info, err := call(d.caller, "nvmlDeviceGetPciInfo", d.nvml.GetPciInfo)
	if err != nil {
		return err
	}
	if d.out.PCI, err = address(info); err != nil {
		return err
	}
	d.out.UUID = "LOST-" + d.out.PCI // until the true one is read
	return nil
}

func (d device) uuid() error {
	uuid, err := call(d.caller, "nvmlDeviceGetUUID", d.nvml.GetUUID)
	if err == nil {
		d.out.UUID = uuid
	}
	return err
}

func (d device) minor() error {
	minor, err := call(d.caller, "nvmlDeviceGetMinorNumber", d.nvml.GetMinorNumber)
	if unsupported(err) { // where there are no device nodes (WSL)
		return nil
	}
	if err == nil {
		d.out.Minor = minor
	}
	return err
}

func (d device) name() (err error) {
	d.out.Model, err = call(d.caller, "nvmlDeviceGetName", d.nvml.GetName)
	return err
}

func (d device) compute() error {
	type version struct{ major, minor int }
	v, err := call(d.caller, "nvmlDeviceGetCudaComputeCapability", func() (version, nvml.Return) {
		major, minor, ret := d.nvml.GetCudaComputeCapability()
		return version{major, minor}, ret
	})
	if err == nil {
		d.out.ComputeCapability = fmt.Sprintf("%d.%d", v.major, v.minor)
	}
	return err
}

func (d device) architecture() error {
	a, err := call(d.caller, "nvmlDeviceGetArchitecture", d.nvml.GetArchitecture)
	if unsupported(err) {
		return nil
	}
	d.out.Architecture = architecture(a)
	return err
}

// architecture is "" for one that is newer than the header.
func architecture(a nvml.DeviceArchitecture) string {
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

func (d device) memory() error {
	m, err := call(d.caller, "nvmlDeviceGetMemoryInfo", d.nvml.GetMemoryInfo)
	if unsupported(err) { // GPUs that share the CPU's memory
		return nil
	}
	d.out.Memory = m.Total
	return err
}

// address puts a PCI bus id of the library, "00000000:1B:00.0", into the form of sysfs.
func address(info nvml.PciInfo) (string, error) {
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
