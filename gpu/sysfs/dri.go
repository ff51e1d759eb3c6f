package sysfs

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// DRI lists the graphics nodes of a PCI device, sorted by minor. It has none
// where no graphics driver is loaded for it.
func DRI(h gpu.Host, address string) ([]gpu.DRINode, error) {
	if !isPCIAddress(address) {
		return nil, nil
	}
	root := h.SysPath("bus/pci/devices", address, "drm")
	names, err := smallfile.Names(root)
	if err != nil {
		return nil, err
	}
	var all []gpu.DRINode
	for _, name := range names {
		if !isDRI(name) {
			continue
		}
		number, err := readOptional(root + "/" + name + "/dev")
		if err != nil {
			return nil, err
		}
		if number == "" { // the device was removed meanwhile
			continue
		}
		_, digits, _ := strings.Cut(number, ":")
		minor, err := strconv.ParseUint(digits, 10, 20)
		if err != nil {
			return nil, fmt.Errorf("read %s/%s/dev: %q isn't a device number", root, name, number)
		}
		all = append(all, gpu.DRINode{Name: name, Minor: int(minor)})
	}
	slices.SortFunc(all, func(a, b gpu.DRINode) int { return cmp.Compare(a.Minor, b.Minor) })
	return all, nil
}

// Displays lists the graphics nodes of cards that only drive displays and can't compute: those of a
// server's management controller, of a virtual machine, and Intel's in the processor. Other and
// unknown cards aren't listed.
func Displays(h gpu.Host) ([]gpu.DRINode, error) {
	root := h.SysPath("class/drm")
	names, err := smallfile.Names(root)
	if err != nil {
		return nil, err
	}
	var all []gpu.DRINode
	for _, name := range names {
		if !isDRI(name) || !strings.HasPrefix(name, "card") {
			continue
		}
		link, err := os.Readlink(root + "/" + name + "/device")
		if isUnknown(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		vendor, err := readOptional(root + "/" + name + "/device/vendor")
		if err != nil {
			return nil, err
		}
		address := path.Base(link)
		if !isDisplay(vendor, address) {
			continue
		}
		nodes, err := DRI(h, address)
		if err != nil {
			return nil, err
		}
		all = append(all, nodes...)
	}
	return all, nil
}

// MaxMinor returns the highest minor of the host's graphics nodes, 0 if there is none.
func MaxMinor(h gpu.Host) (highest int, err error) {
	root := h.SysPath("class/drm")
	names, err := smallfile.Names(root)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		if !isDRI(name) {
			continue
		}
		number, err := readOptional(root + "/" + name + "/dev")
		if err != nil {
			return 0, err
		}
		_, digits, _ := strings.Cut(number, ":")
		if minor, err := strconv.ParseUint(digits, 10, 20); err == nil {
			highest = max(highest, int(minor))
		}
	}
	return highest, nil
}

// isDisplay recognises displays by their PCI vendor. Intel's accelerators are separate cards, and
// Intel's displays are always at the same address.
func isDisplay(vendor, address string) bool {
	const aspeed, matrox, qemu, intel = "0x1a03", "0x102b", "0x1234", "0x8086"
	switch vendor {
	case aspeed, matrox, qemu:
		return true
	case intel:
		return address == "0000:00:02.0"
	}
	return false
}

// isDRI reports whether a name is that of a node that programs open: card1, renderD129.
func isDRI(name string) bool {
	digits, isCard := strings.CutPrefix(name, "card")
	if !isCard {
		var isRender bool
		if digits, isRender = strings.CutPrefix(name, "renderD"); !isRender {
			return false
		}
	}
	return digits != "" && len(digits) < 8 && strings.Trim(digits, "0123456789") == ""
}
