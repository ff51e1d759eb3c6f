package sysfs

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// DRI lists the graphics nodes of a PCI device, sorted by minor. It has none
// where no graphics driver is loaded for it.
func DRI(h gpu.Host, address string) ([]gpu.DRINode, error) {
	if !isAddress(address) {
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
		number, err := optional(root + "/" + name + "/dev")
		if err != nil {
			return nil, err
		}
		if number == "" { // it went away meanwhile
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

// isDRI says whether a name is that of a node that programs open: card1, renderD129.
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
