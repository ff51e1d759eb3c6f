package sysfs

import (
	"strings"

	"github.com/berth-gpu/berth/gpu"
)

// Path says how far apart two devices are, in the words of nvidia-smi topo -m.
// nodes is the number of NUMA nodes of the machine: where there is but one, a
// device that doesn't name its node is on it. A device whose place is unknown is
// as far away as can be.
func Path(a, b Device, nodes int) gpu.Path {
	common := 0
	for common < min(len(a.Route), len(b.Route)) && a.Route[common] == b.Route[common] {
		common++
	}
	switch {
	case common == 0:
		return acrossBridges(a, b, nodes)
	case isHostBridge(a.Route[common-1]):
		return gpu.PathPHB
	// Below the last common bridge, a switch adds one more bridge: its downstream port.
	case len(a.Route)-common <= 2 && len(b.Route)-common <= 2:
		return gpu.PathPIX
	}
	return gpu.PathPXB
}

func acrossBridges(a, b Device, nodes int) gpu.Path {
	known := a.NUMA >= 0 || nodes <= 1
	if a.Route != nil && b.Route != nil && a.NUMA == b.NUMA && known {
		return gpu.PathNODE
	}
	return gpu.PathSYS
}

// pciRoute returns the PCI elements of a resolved path: host bridges ("pci0000:15", also those of a
// VMD, "pci10000:00") and the addresses of bridges and device.
func pciRoute(path string) []string {
	var parts []string
	for part := range strings.SplitSeq(path, "/") {
		if isHostBridge(part) || isPCIAddress(part) {
			parts = append(parts, part)
		}
	}
	return parts
}

func isHostBridge(s string) bool {
	rest, ok := strings.CutPrefix(s, "pci")
	domain, bus, found := strings.Cut(rest, ":")
	return ok && found && isHex(domain, 4, 8) && isHex(bus, 2, 2)
}

// isPCIAddress reports whether s is a PCI address in sysfs form, "0000:1b:00.0".
func isPCIAddress(s string) bool {
	domain, rest, _ := strings.Cut(s, ":")
	bus, rest, _ := strings.Cut(rest, ":")
	device, function, _ := strings.Cut(rest, ".")
	return isHex(domain, 4, 8) && isHex(bus, 2, 2) && isHex(device, 2, 2) && isHex(function, 1, 1)
}

func isHex(s string, least, most int) bool {
	return len(s) >= least && len(s) <= most && strings.Trim(s, "0123456789abcdef") == ""
}
