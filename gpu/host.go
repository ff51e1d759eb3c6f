package gpu

import "path/filepath"

// Host has the mount points of a node's /dev, /proc and /sys, and the root of its driver. The zero
// value is this machine as it is; a driver that lives under a prefix (/run/nvidia/driver) sets
// DriverRoot. Nothing else in berth knows these paths.
type Host struct {
	// DriverRoot is the prefix of the driver's user-space files. "" means "/".
	DriverRoot string `json:"driver_root,omitempty"`
	// Dev, Proc and Sys are the mount points of those trees. "" means the usual ones.
	Dev  string `json:"dev,omitempty"`
	Proc string `json:"proc,omitempty"`
	Sys  string `json:"sys,omitempty"`
}

// Driver joins path elements below the driver root.
func (h Host) Driver(elem ...string) string { return under(h.DriverRoot, "/", elem) }

// DevPath joins path elements below the device tree.
func (h Host) DevPath(elem ...string) string { return under(h.Dev, "/dev", elem) }

// ProcPath joins path elements below procfs.
func (h Host) ProcPath(elem ...string) string { return under(h.Proc, "/proc", elem) }

// SysPath joins path elements below sysfs.
func (h Host) SysPath(elem ...string) string { return under(h.Sys, "/sys", elem) }

func under(root, usual string, elem []string) string {
	if root == "" {
		root = usual
	}
	return filepath.Join(append([]string{root}, elem...)...)
}
