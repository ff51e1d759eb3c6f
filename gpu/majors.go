package gpu

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// Major is one line of the character devices of /proc/devices. Several drivers
// can share a number, and one driver can hold several.
type Major struct {
	Number uint32
	Name   string
}

// maxMajors bounds /proc/devices.
const maxMajors = 1 << 20

// ReadMajors reads the host's list of character majors.
func ReadMajors(h Host) ([]Major, error) {
	path := h.ProcPath("devices")
	list, err := smallfile.Read(path, maxMajors)
	if err != nil {
		return nil, fmt.Errorf("read the host's majors: %w", err)
	}
	majors, err := ParseDevices(string(list))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return majors, nil
}

// ParseDevices reads the character devices of /proc/devices, in its order. The
// block devices that follow are left alone.
func ParseDevices(text string) ([]Major, error) {
	var majors []Major
	char := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
		case strings.HasSuffix(line, "devices:"):
			char = line == "Character devices:"
		case char:
			m, err := parseMajor(line)
			if err != nil {
				return nil, err
			}
			majors = append(majors, m)
		}
	}
	return majors, nil
}

func parseMajor(line string) (Major, error) {
	number, name, _ := strings.Cut(line, " ")
	n, err := strconv.ParseUint(number, 10, 32)
	name = strings.TrimSpace(name)
	if err != nil || name == "" {
		return Major{}, fmt.Errorf("parse line %q of the list of majors: want a number and a name", line)
	}
	return Major{Number: uint32(n), Name: name}, nil
}

// IsAcceleratorMajor reports whether the driver with this name in /proc/devices gives access to an
// accelerator or to its infrastructure: its control and capability nodes, its interconnect, and
// RDMA. No container gets such a major as a whole; leased nodes are allowed one by one.
//
// Drivers are recognised by name, because the kernel assigns most majors when a driver loads. For
// fixed majors see [AcceleratorMajors]. Misc devices (major 10: rdma_cm, kvm, fuse, dxg) and vfio,
// through which no driver of the host is reached, are not accelerators.
func IsAcceleratorMajor(name string) bool {
	// NVIDIA's modules: nvidia, nvidia-frontend (before 545), nvidiactl and
	// nvidia-modeset (all 195), nvidia-uvm, nvidia-caps,
	// nvidia-caps-imex-channels, nvidia-nvswitch, nvidia-nvlink,
	// nvidia-vgpu-vfio, nvidia-fs …: a new one is isolated too.
	if strings.HasPrefix(name, "nvidia") {
		return true
	}
	switch name {
	case "gdrdrv", // GDRCopy: the GPU's memory by way of the BAR
		"kfd",                                         // AMD compute
		"drm",                                         // 226: card* and renderD* of every vendor
		"accel",                                       // 261: the kernel's class for accelerators without display
		"habanalabs", "neuron", "tenstorrent", "apex", // Intel Gaudi, AWS, Tenstorrent, Coral
		"devdrv-cdev",                                         // Huawei Ascend
		"infiniband_verbs", "infiniband_mad", "infiniband_cm": // RDMA: infiniband_verbs (231) and the like
		return true
	}
	return false
}

// AcceleratorMajors returns the majors of accelerators: those of the host's drivers by their names,
// and the majors that the kernel reserves for accelerators. The latter count even if their driver
// isn't loaded: it may be loaded while a container runs. Source:
// Documentation/admin-guide/devices.txt of the kernel.
func AcceleratorMajors(host []Major) map[int64]bool {
	const nvidia, drm, infiniband, accel = 195, 226, 231, 261
	all := map[int64]bool{nvidia: true, drm: true, infiniband: true, accel: true}
	for _, m := range host {
		if IsAcceleratorMajor(m.Name) {
			all[int64(m.Number)] = true
		}
	}
	return all
}
