package sysfs

import (
	"errors"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
)

// MarkLost returns the GPUs, in a copy if necessary, with those marked as lost that fell off
// the PCI bus after they were discovered. It costs two small reads for each GPU and asks no
// driver, so it works where the driver hangs.
func MarkLost(h gpu.Host, gpus []gpu.GPU) []gpu.GPU {
	copied := false
	for i, g := range gpus {
		if g.Lost != "" {
			continue
		}
		why := OffBus(h, g)
		if why == "" {
			continue
		}
		if !copied {
			gpus, copied = slices.Clone(gpus), true
		}
		gpus[i].Lost = why
	}
	return gpus
}

// OffBus returns the reason why a GPU can't be reached on the PCI bus any more; "" if it can be, or
// if that isn't known. A device that fell off the bus reads as all ones. The whole header is
// compared, because the ids alone of a virtual function are all ones, too. A device in D3cold isn't
// read, because the kernel would wake it to read its configuration space.
//
// A device that is missing in /sys counts as lost only if it was there when it was discovered,
// which its CPUs show: sandboxes and containers can have GPUs that their /sys doesn't list.
func OffBus(h gpu.Host, g gpu.GPU) string {
	if !isPCIAddress(g.PCI) {
		return ""
	}
	dir := h.SysPath("bus/pci/devices", g.PCI)
	if power, err := readOptional(dir + "/power_state"); err != nil || power == "D3cold" {
		return ""
	}
	fd, err := unix.Open(dir+"/config", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if g.CPUs == "" || !isAbsent(h, g.PCI) {
			return ""
		}
		return "fell off the PCI bus: there is no device " + g.PCI
	}
	if err != nil {
		return ""
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	var header [64]byte                   // the part that users other than root can read
	if n, err := unix.Pread(fd, header[:], 0); err != nil || n < len(header) {
		return ""
	}
	for _, b := range header {
		if b != 0xff {
			return ""
		}
	}
	return "fell off the PCI bus: the configuration space of " + g.PCI + " reads as ones"
}

// isAbsent distinguishes a device that is gone from a tree that isn't complete.
func isAbsent(h gpu.Host, address string) bool {
	dir := h.SysPath("bus/pci/devices")
	return unix.Access(dir, unix.F_OK) == nil && errors.Is(unix.Access(dir+"/"+address, unix.F_OK), unix.ENOENT)
}
