// Package foreign turns CDI devices of other vendors into edits: what the host's
// CDI specs say that a container needs for vendor.example/nic=port0.
//
// The host's specs are read, checked and brought into one list rarely (package
// cdi/registry, by berth discover); the list is a file that a container's start
// reads only if it was asked for such a device. The list carries a stamp of the
// specs that it was made of, so that a start notices when they have changed.
//
// It doesn't lease devices (package ledger does) and doesn't check the admin's policy. The specs are
// written by root and trusted. The container's root is never accessed here.
package foreign

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	cdispecs "tags.cncf.io/container-device-interface/specs-go"
)

// ErrUnknown: no CDI spec of the host defines the device.
var ErrUnknown = errors.New("no CDI spec defines it")

// Registry is every usable CDI device of the host that isn't berth's own.
type Registry struct {
	// Specs in the order of their paths.
	Specs []Spec `json:"specs"`
	// Problems are the specs, or single devices, that can't be used, and why.
	Problems []Problem `json:"problems,omitempty"`
}

// Spec is one file's devices and what comes with each of them.
type Spec struct {
	Path string `json:"path"`
	// Kind is "vendor/class".
	Kind string `json:"kind"`
	// Edits come with whichever devices of the spec, once.
	Edits   cdispecs.ContainerEdits `json:"edits"`
	Devices []Device                `json:"devices"`
}

// Device is one device of a spec.
type Device struct {
	// Name within the kind: "port0".
	Name  string                  `json:"name"`
	Edits cdispecs.ContainerEdits `json:"edits"`
}

// Problem is a spec that can't be used, in full or in part.
type Problem struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Names lists the qualified names of all devices, in the order of the registry.
func (r Registry) Names() []string {
	var all []string
	for _, s := range r.Specs {
		for _, d := range s.Devices {
			all = append(all, s.Kind+"="+d.Name)
		}
	}
	return all
}

// Find returns the spec and the device of a qualified name. Its error Is
// [ErrUnknown] and names the devices of the same vendor, or the vendors.
func (r Registry) Find(name string) (Spec, Device, error) {
	kind, device, _ := strings.Cut(name, "=")
	for _, s := range r.Specs {
		if s.Kind != kind {
			continue
		}
		if i := slices.IndexFunc(s.Devices, func(d Device) bool { return d.Name == device }); i >= 0 {
			return s, s.Devices[i], nil
		}
	}
	return Spec{}, Device{}, fmt.Errorf("CDI device %s: %w%s", name, ErrUnknown, r.hintFor(kind))
}

// hintFor returns what an error suggests: the devices of the same kind, or the known kinds, or a
// problem of a spec that may define the device.
func (r Registry) hintFor(kind string) string {
	var same, kinds []string
	for _, name := range r.Names() {
		k, _, _ := strings.Cut(name, "=")
		if k == kind {
			same = append(same, name)
		}
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	switch {
	case len(same) > 0:
		return "; there are " + strings.Join(same, ", ")
	case len(r.Problems) > 0:
		return fmt.Sprintf("; of the specs that can't be used, %s: %s", r.Problems[0].Path, r.Problems[0].Reason)
	case len(kinds) > 0:
		return "; there are devices of " + strings.Join(kinds, ", ")
	}
	return "; the host has no CDI devices of others"
}

// Allowed reports whether the admin's list of vendor/class patterns has the device:
// "vendor.example/nic", "vendor.example/*" or "*".
func Allowed(name string, patterns []string) bool {
	kind, _, _ := strings.Cut(name, "=")
	vendor, _, _ := strings.Cut(kind, "/")
	return slices.ContainsFunc(patterns, func(p string) bool {
		return p == "*" || p == kind || p == vendor+"/*"
	})
}
