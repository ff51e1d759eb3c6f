// Package cdi turns leased devices into edits of a container's spec: the nodes
// that make them usable, the driver's files, the environment, and the few changes
// in the container's root that let the dynamic loader find the driver.
//
// [Devices] and [Files] are pure; [Services] looks at the host. [Views] keeps small
// directories that show of /proc/driver what was leased. [PrepareRoot] writes into the container's root,
// through descriptors, before the container exists; it runs no program, neither
// the image's nor the host's. Package cdi/driver makes the directory of driver
// files, package cdi/ldcache knows the loader cache's format.
//
// It grants and never takes away: that is package isolation.
package cdi

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

// The fixed numbers of NVIDIA's driver (LANANA's list of devices).
const (
	majorNVIDIA  = 195
	minorControl = 255
	minorTools   = 1 // of nvidia-uvm; 0 is uvm itself
)

// Devices says what a container needs to use the leased devices of the inventory:
// their nodes, the control nodes that every CUDA program opens, the capability
// nodes of MIG slices, and two variables. majors are the accelerators' character
// majors of /proc/devices by driver name (snapshot.Key.Majors). No device, no
// edits.
//
// The wish's capabilities decide on uvm (compute) and on the graphics nodes
// (graphics, display), its features on nodes beside the GPUs; what it doesn't name
// isn't added, and a feature that the node lacks is an error.
//
// CUDA_VISIBLE_DEVICES is left alone, for whole GPUs and slices: CUDA lists what
// it can open, and whoever sets the variable inside means the container's own
// numbering. NVIDIA_VISIBLE_DEVICES=void keeps NVIDIA's tools from adding more.
func Devices(inv gpu.Inventory, leased []gpu.Device, majors map[string]uint32, wish Wish) (edits.Edits, error) {
	if len(leased) == 0 {
		return edits.Edits{}, nil
	}
	e := edits.Edits{Env: map[string]string{
		"CUDA_DEVICE_ORDER":      "PCI_BUS_ID",
		"NVIDIA_VISIBLE_DEVICES": "void",
	}}
	for _, d := range leased {
		nodes, err := deviceNodes(inv, d, majors, wish)
		if err != nil {
			return edits.Edits{}, err
		}
		for _, n := range nodes {
			if !slices.Contains(e.Nodes, n) {
				e.Nodes = append(e.Nodes, n)
			}
		}
	}
	control, err := controlNodes(majors, wish)
	if err != nil {
		return edits.Edits{}, err
	}
	extra, err := featureNodes(inv, wish.Features)
	if err != nil {
		return edits.Edits{}, err
	}
	e.Nodes = slices.Concat(e.Nodes, control, extra)
	return e, nil
}

// deviceNodes of one device: its GPU's, and for a slice those of its capabilities.
func deviceNodes(inv gpu.Inventory, d gpu.Device, majors map[string]uint32, wish Wish) ([]edits.Node, error) {
	g, s, ok := inv.Lookup(d.UUID)
	switch {
	case !ok:
		return nil, fmt.Errorf("device %s: the node doesn't have it any more", d.UUID)
	case g.Lost != "":
		return nil, fmt.Errorf("device %s: lost: %s", d.UUID, g.Lost)
	case g.Minor < 0:
		return nil, fmt.Errorf("device %s: its minor number is unknown", d.UUID)
	}
	nodes := []edits.Node{deviceNode(fmt.Sprintf("nvidia%d", g.Minor), majorOf(majors), g.Minor)}
	if s == nil {
		if wish.wantsDisplay() { // not for a slice: such a node is the whole GPU's
			nodes = append(nodes, graphicsNodes(*g, majors)...)
		}
		return nodes, nil
	}
	major, ok := majors["nvidia-caps"]
	if !ok {
		return nil, fmt.Errorf("device %s: /proc/devices has no nvidia-caps", d.UUID)
	}
	for _, minor := range []int{s.GIMinor, s.CIMinor} {
		n := deviceNode(fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor), int64(major), minor)
		n.Mode = 0o444 // as the driver makes them: holding it open is the right
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// controlNodes are nvidiactl, and those of the wish's capabilities.
func controlNodes(majors map[string]uint32, wish Wish) ([]edits.Node, error) {
	nodes := []edits.Node{deviceNode("nvidiactl", majorOf(majors), minorControl)}
	if wish.Capabilities.Has(gpu.Compute) {
		uvm, ok := majors["nvidia-uvm"]
		if !ok {
			return nil, fmt.Errorf("/proc/devices has no nvidia-uvm: the module isn't loaded; modprobe nvidia-uvm loads it, and berth discover takes note")
		}
		nodes = append(nodes, deviceNode("nvidia-uvm", int64(uvm), 0), deviceNode("nvidia-uvm-tools", int64(uvm), minorTools))
	}
	if wish.wantsDisplay() {
		nodes = append(nodes, modesetNode(majors)...)
	}
	return nodes, nil
}

// majorOf the GPUs' nodes: the number is fixed, the name of its driver isn't.
func majorOf(majors map[string]uint32) int64 {
	for _, name := range []string{"nvidia", "nvidia-frontend"} {
		if m, ok := majors[name]; ok {
			return int64(m)
		}
	}
	return majorNVIDIA
}

// deviceNode is open to every user in the container: the lease is the right to use it,
// whatever the host's file modes say to the host's users.
func deviceNode(name string, major int64, minor int) edits.Node {
	return edits.Node{Path: "/dev/" + name, Type: "c", Major: major, Minor: int64(minor), Mode: 0o666, Access: "rw"}
}

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
