package sysfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
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
		why := OffBus(h, g.PCI)
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

// OffBus says why a device can't be reached on the PCI bus any more; "" if it can be, or if
// that isn't known. Reads of a device that fell off the bus give ones. The whole header is
// compared: the ids alone of a virtual function are ones, too. A device in D3cold is left
// alone, because the kernel would wake it to read its configuration space.
func OffBus(h gpu.Host, address string) string {
	if !isAddress(address) {
		return ""
	}
	dir := h.SysPath("bus/pci/devices", address)
	if power, err := readOptional(dir + "/power_state"); err != nil || power == "D3cold" {
		return ""
	}
	f, err := os.Open(dir + "/config")
	if errors.Is(err, fs.ErrNotExist) {
		return whyAbsent(h, address)
	}
	if err != nil {
		return ""
	}
	defer f.Close()
	var header [64]byte // what users other than root can read
	if _, err := io.ReadFull(f, header[:]); err != nil {
		return ""
	}
	for _, b := range header {
		if b != 0xff {
			return ""
		}
	}
	return "fell off the PCI bus: the configuration space of " + address + " reads as ones"
}

// whyAbsent distinguishes a device that is gone from a tree that isn't complete.
func whyAbsent(h gpu.Host, address string) string {
	dir := h.SysPath("bus/pci/devices")
	listed := unix.Access(dir, unix.F_OK) == nil
	if listed && errors.Is(unix.Access(dir+"/"+address, unix.F_OK), unix.ENOENT) {
		return "fell off the PCI bus: there is no device " + address
	}
	return ""
}
