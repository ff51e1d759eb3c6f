// Package registry reads the host's CDI specs, of whatever vendor, with the CDI
// project's own library, and brings them into the one list of package foreign.
//
// A spec that is broken, or contradicts another one, is a problem in the list and
// nothing more: the other specs stay usable. Berth's own specs are left out, for
// what they name is leased and not looked up.
//
// It is for berth discover and berth cdi; a container's start doesn't link it.
package registry

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/berth-gpu/berth/cdi/foreign"
	"github.com/berth-gpu/berth/cdi/menu"
)

// Read lists the devices of all specs in the directories. Of two definitions of one
// device the one in the later directory counts; two in one directory are a problem,
// and neither counts.
func Read(dirs []string) foreign.Registry {
	// The error is always nil: problems are with their specs.
	cache, _ := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
	var r foreign.Registry
	for _, vendor := range cache.ListVendors() {
		for _, s := range cache.GetVendorSpecs(vendor) {
			if spec := toForeignSpec(cache, s); len(spec.Devices) > 0 {
				r.Specs = append(r.Specs, spec)
			}
		}
	}
	slices.SortFunc(r.Specs, func(a, b foreign.Spec) int { return cmp.Compare(a.Path, b.Path) })
	for path, errs := range cache.GetErrors() {
		for _, err := range errs {
			r.Problems = append(r.Problems, foreign.Problem{Path: path, Reason: oneLineReason(err)})
		}
	}
	slices.SortFunc(r.Problems, func(a, b foreign.Problem) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Reason, b.Reason))
	})
	return r
}

// toForeignSpec returns a spec with those of its devices that count and aren't berth's.
func toForeignSpec(cache *cdi.Cache, s *cdi.Spec) foreign.Spec {
	spec := foreign.Spec{Path: s.GetPath(), Kind: s.Kind, Edits: s.ContainerEdits}
	for _, d := range s.Devices {
		counts := cache.GetDevice(s.Kind + "=" + d.Name)
		if counts == nil || counts.GetSpec().GetPath() != s.GetPath() || isOwnDevice(d) {
			continue
		}
		spec.Devices = append(spec.Devices, foreign.Device{Name: d.Name, Edits: d.ContainerEdits})
	}
	return spec
}

func isOwnDevice(d cdispecs.Device) bool {
	return slices.ContainsFunc(d.ContainerEdits.Hooks, func(h *cdispecs.Hook) bool {
		return filepath.Base(h.Path) == menu.Hook
	})
}

// oneLineReason returns an error of the library in one line.
func oneLineReason(err error) string {
	return strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "failed to load CDI Spec ")), " ")
}

// Validate reads one file as the library does, and returns the library's error.
func Validate(path string) (foreign.Spec, error) {
	s, err := cdi.ReadSpec(path, 0)
	if err != nil {
		return foreign.Spec{}, fmt.Errorf("CDI spec %s: %s", path, oneLineReason(err))
	}
	spec := foreign.Spec{Path: path, Kind: s.Kind, Edits: s.ContainerEdits}
	for _, d := range s.Devices {
		spec.Devices = append(spec.Devices, foreign.Device{Name: d.Name, Edits: d.ContainerEdits})
	}
	return spec, nil
}
