// Package nodes makes what NVIDIA's driver leaves to user space: the device nodes
// below /dev, and the module nvidia-uvm. The driver's own nvidia-modprobe does it
// when a CUDA program starts; a container's start can't wait for that, so berth
// discover does it beforehand.
//
// It also makes the links /dev/char/MAJOR:MINOR, which udev makes for the devices
// of other drivers: runc's systemd cgroup driver needs them to hand a device rule
// to systemd.
//
// Nodes with the right numbers are left alone, including their owner and mode. A node with other
// numbers, from before the module was reloaded, is replaced atomically. Anything else at such a path
// is left alone and is an error.
package nodes

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
)

// Node is one character device to make.
type Node struct {
	// Path below the device tree: "nvidia0", "nvidia-caps/nvidia-cap12".
	Path         string
	Major, Minor uint32
	Mode         uint32 // permission bits
	UID, GID     int
}

// Minors of NVIDIA's control nodes, from the driver's nv-chardev-numbers.h and
// uvm_common.h.
const (
	minorControl  = 255
	minorModeset  = 254
	minorUVM      = 0
	minorUVMTools = 1
)

// Plan lists the nodes that the driver wants, in a fixed order: those of GPUs, of
// control, and of MIG capabilities. It is empty where there is no driver, and
// where the driver asks user space to leave its nodes alone (ModifyDeviceFiles: 0).
func Plan(h gpu.Host) ([]Node, error) {
	files, err := driver.Params(h)
	if err != nil {
		return nil, err
	}
	majors, err := gpu.ReadMajors(h)
	if err != nil {
		return nil, err
	}
	gpus, err := driver.GPUs(h)
	if err != nil {
		return nil, err
	}
	caps, err := driver.Capabilities(h)
	if err != nil {
		return nil, err
	}
	if !files.Modify {
		return nil, nil
	}
	return planNodes(files, majors, gpus, caps), nil
}

func planNodes(files driver.DeviceFiles, majors []gpu.Major, gpus []driver.GPU, caps []driver.Capability) []Node {
	var all []Node
	add := func(path string, major uint32, minor int, f driver.DeviceFiles) {
		all = append(all, Node{Path: path, Major: major, Minor: uint32(minor), Mode: f.Mode, UID: f.UID, GID: f.GID})
	}
	if major, ok := majorOf(majors, "nvidia", "nvidia-frontend"); ok {
		for _, g := range gpus {
			if g.Minor >= 0 {
				add(fmt.Sprintf("nvidia%d", g.Minor), major, g.Minor, files)
			}
		}
		add("nvidiactl", major, minorControl, files)
	}
	if major, ok := majorOf(majors, "nvidia-modeset"); ok {
		add("nvidia-modeset", major, minorModeset, files)
	}
	if major, ok := majorOf(majors, "nvidia-uvm"); ok {
		add("nvidia-uvm", major, minorUVM, files)
		add("nvidia-uvm-tools", major, minorUVMTools, files)
	}
	if major, ok := majorOf(majors, "nvidia-caps"); ok {
		for _, c := range caps {
			if c.Files.Modify {
				add(fmt.Sprintf("nvidia-caps/nvidia-cap%d", c.Minor), major, c.Minor, c.Files)
			}
		}
	}
	return all
}

// majorOf finds the major of a driver that has had several names.
func majorOf(majors []gpu.Major, names ...string) (uint32, bool) {
	for _, name := range names {
		if i := slices.IndexFunc(majors, func(m gpu.Major) bool { return m.Name == name }); i >= 0 {
			return majors[i].Number, true
		}
	}
	return 0, false
}

// Change is one node or link that [Make] has made.
type Change struct {
	// Path below the device tree, of a node or of a link.
	Path string
	// Was describes what was replaced: "195:0" for a node, the target for a link, "" if there was
	// nothing.
	Was string
}

// charLink returns the path of the node's link below the device tree, and the link's target.
func (n Node) charLink() (path, target string) {
	return fmt.Sprintf("char/%d:%d", n.Major, n.Minor), "../" + n.Path
}

// splitPath cuts a path below the device tree, which has at most one directory.
func splitPath(path string) (dir, name string) {
	dir, name, found := strings.Cut(path, "/")
	if !found {
		return "", path
	}
	return dir, name
}
