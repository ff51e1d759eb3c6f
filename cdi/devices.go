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
// It only adds to a spec; package isolation removes.
package cdi

import (
	"fmt"
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

// Devices returns what a container needs to use the leased devices of the inventory: their nodes,
// the control nodes that every CUDA program opens, the capability nodes of MIG slices, and two
// variables. majors are the accelerators' character majors of /proc/devices by driver name
// (snapshot.Key.Majors). Without devices there are no edits.
//
// selection.Capabilities selects uvm (compute) and the graphics nodes (graphics, display).
// selection.Features selects nodes beside the GPUs; a feature that the node lacks is an error.
//
// CUDA_VISIBLE_DEVICES is never set: CUDA lists the devices that it can open, and a value that the
// image or the user sets counts in the container's own numbering. NVIDIA_VISIBLE_DEVICES=void keeps
// NVIDIA's tools from adding more.
func Devices(inv gpu.Inventory, leased []gpu.Device, majors map[string]uint32, selection Selection) (edits.Edits, error) {
	if len(leased) == 0 {
		return edits.Edits{}, nil
	}
	var e edits.Edits
	e.SetEnv("has CUDA number GPUs as the PCI bus and nvidia-smi do", "CUDA_DEVICE_ORDER", "PCI_BUS_ID")
	e.SetEnv("keeps NVIDIA's own tools from adding devices", "NVIDIA_VISIBLE_DEVICES", "void")
	for _, d := range leased {
		if err := addDeviceNodes(&e, inv, d, majors, selection); err != nil {
			return edits.Edits{}, err
		}
	}
	if err := addControlNodes(&e, majors, selection); err != nil {
		return edits.Edits{}, err
	}
	return e, addFeatureNodes(&e, inv, selection.Features)
}

// addDeviceNodes adds the nodes of one device: its GPU's, and for a slice those of its
// capabilities.
func addDeviceNodes(e *edits.Edits, inv gpu.Inventory, d gpu.Device, majors map[string]uint32, selection Selection) error {
	g, s, ok := inv.Lookup(d.UUID)
	switch {
	case !ok:
		return fmt.Errorf("device %s: the node doesn't have it any more", d.UUID)
	case g.Lost != "":
		return fmt.Errorf("device %s: lost: %s", d.UUID, g.Lost)
	case g.Minor < 0:
		return fmt.Errorf("device %s: its minor number is unknown", d.UUID)
	}
	why := "device " + d.UUID
	e.AddNodes(why, deviceNode(fmt.Sprintf("nvidia%d", g.Minor), majorOf(majors), g.Minor))
	if s == nil {
		if selection.wantsDisplay() { // not for a slice: a graphics node gives access to the whole GPU
			e.AddNodes(why+"; "+selection.whyDisplay(), graphicsNodes(*g, majors)...)
		}
		return nil
	}
	major, ok := majors["nvidia-caps"]
	if !ok {
		return fmt.Errorf("device %s: /proc/devices has no nvidia-caps", d.UUID)
	}
	for _, minor := range []int{s.GIMinor, s.CIMinor} {
		n := deviceNode(fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor), int64(major), minor)
		n.Mode = 0o444 // the driver's own mode; a process has the capability while it holds the node open
		e.AddNodes(why, n)
	}
	return nil
}

// addControlNodes adds nvidiactl, with compute the uvm nodes, and with graphics or display the
// modeset node.
func addControlNodes(e *edits.Edits, majors map[string]uint32, selection Selection) error {
	e.AddNodes("comes with every GPU", deviceNode("nvidiactl", majorOf(majors), minorControl))
	if selection.Capabilities.Has(gpu.Compute) {
		uvm, ok := majors["nvidia-uvm"]
		if !ok {
			return fmt.Errorf("/proc/devices has no nvidia-uvm: the module isn't loaded; modprobe nvidia-uvm loads it, and berth discover takes note")
		}
		e.AddNodes("driver capability compute", deviceNode("nvidia-uvm", int64(uvm), 0), deviceNode("nvidia-uvm-tools", int64(uvm), minorTools))
	}
	if selection.wantsDisplay() {
		e.AddNodes(selection.whyDisplay(), modesetNode(majors)...)
	}
	return nil
}

// majorOf returns the major of the GPUs' nodes. The number is fixed, but the driver's name in
// /proc/devices varies.
func majorOf(majors map[string]uint32) int64 {
	for _, name := range []string{"nvidia", "nvidia-frontend"} {
		if m, ok := majors[name]; ok {
			return int64(m)
		}
	}
	return majorNVIDIA
}

// deviceNode returns a node with mode 0666: the lease grants access to all users of the container,
// independent of the node's mode on the host.
func deviceNode(name string, major int64, minor int) edits.Node {
	return edits.Node{Path: "/dev/" + name, Type: "c", Major: major, Minor: int64(minor), Mode: 0o666, Access: "rw"}
}

const minorModeset = 254

// wantsDisplay reports whether the container needs the kernel's graphics nodes (/dev/dri).
func (w Selection) wantsDisplay() bool { return w.Capabilities&(gpu.Graphics|gpu.Display) != 0 }

// whyDisplay returns the reason of the graphics nodes.
func (w Selection) whyDisplay() string {
	return DescribeCapabilities(w.Capabilities & (gpu.Graphics | gpu.Display))
}

// DescribeCapabilities returns the reason of an edit that comes with one of these capabilities.
func DescribeCapabilities(caps gpu.Capabilities) string {
	return "driver capability " + strings.ReplaceAll(caps.String(), ",", " or ")
}

// graphicsNodes returns the DRM nodes of one GPU; none if nvidia-drm isn't loaded, as on many
// servers.
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

// modesetNode returns nvidia-modeset; none if the module isn't loaded.
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
