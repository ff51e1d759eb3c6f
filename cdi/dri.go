package cdi

import (
	"strings"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

const minorModeset = 254

// wantsDisplay says that the container draws or shows pictures: the kernel's graphics
// nodes are for it.
func (w Wish) wantsDisplay() bool { return w.Capabilities&(gpu.Graphics|gpu.Display) != 0 }

// graphicsNodes of one GPU. A node without nvidia-drm, as servers often are, has none.
func graphicsNodes(g gpu.GPU, majors map[string]uint32) []edits.Node {
	major, ok := majors["drm"]
	if !ok {
		return nil
	}
	var nodes []edits.Node
	for _, d := range g.DRI {
		nodes = append(nodes, deviceNode("dri/"+d.Name, int64(major), d.Minor))
	}
	return nodes
}

// modesetNode is there if the module is loaded.
func modesetNode(majors map[string]uint32) []edits.Node {
	major, ok := majors["nvidia-modeset"]
	if !ok {
		return nil
	}
	return []edits.Node{deviceNode("nvidia-modeset", int64(major), minorModeset)}
}

// graphicsLinks are udev's names for the graphics nodes of whole GPUs, as they are found in
// /dev/dri/by-path: pci-0000:1b:00.0-card leads to ../card1.
func graphicsLinks(inv gpu.Inventory, leased []gpu.Device) map[string]string {
	all := map[string]string{}
	for _, d := range leased {
		g, s, ok := inv.Lookup(d.UUID)
		if !ok || s != nil {
			continue
		}
		for _, n := range g.DRI {
			if kind := linkKind(n.Name); kind != "" {
				all["pci-"+g.PCI+"-"+kind] = "../" + n.Name
			}
		}
	}
	return all
}

func linkKind(name string) string {
	switch {
	case strings.HasPrefix(name, "card"):
		return "card"
	case strings.HasPrefix(name, "renderD"):
		return "render"
	}
	return ""
}
