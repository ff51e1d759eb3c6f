package cdi

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// ProcDriver is the directory in which drivers show their state in procfs, in a container as on the
// host.
const ProcDriver = "/proc/driver"

// ProcEdits hides the state of devices that aren't leased in a container's /proc/driver, and makes
// the rest read-only: root could suspend all GPUs there (nvidia/suspend). Runtimes mask paths below
// /proc by themselves; runc refuses mounts there.
//
// The driver's parameters stay the host's, so ModifyDeviceFiles can be 1 in a container: the
// driver's tools then make missing nodes, which device rules and the lack of CAP_MKNOD prevent.
// Runtimes ignore masked paths that the container's procfs lacks.
func ProcEdits(h gpu.Host, inv gpu.Inventory, leased []gpu.Device, selection Selection) (edits.Edits, error) {
	if len(leased) == 0 {
		return edits.Edits{}, nil
	}
	shown, err := shownProcPaths(inv, leased, selection.Features)
	if err != nil {
		return edits.Edits{}, err
	}
	masked, err := maskedProcPaths(h.ProcPath("driver"), "", shown)
	if err != nil {
		return edits.Edits{}, fmt.Errorf("read the driver's state: %w", err)
	}
	e := edits.Edits{MaskedPaths: masked, ReadonlyPaths: []string{ProcDriver}}
	e.AddReason("mask", ProcDriver, "is read-only, and what is of other devices is masked")
	return e, nil
}

// shownProcPaths are the files and directories below /proc/driver that a container sees whole.
func shownProcPaths(inv gpu.Inventory, leased []gpu.Device, features []gpu.Feature) ([]string, error) {
	shown := []string{"nvidia/version", "nvidia/params", "nvidia/registry", "nvidia-caps"}
	for _, f := range features {
		switch f.Name() {
		case gpu.FeatureGDS:
			shown = append(shown, "nvidia-fs")
		case gpu.FeatureNVSwitch:
			shown = append(shown, "nvidia-nvswitch", "nvidia-nvlink")
		}
	}
	for _, d := range leased {
		g, s, ok := inv.Lookup(d.UUID)
		if !ok {
			return nil, fmt.Errorf("device %s: the node doesn't have it any more", d.UUID)
		}
		shown = append(shown, path.Join("nvidia/gpus", g.PCI))
		const capabilities = "nvidia/capabilities"
		switch {
		case s != nil:
			shown = append(shown, path.Join(capabilities, driver.GI(g.Minor, s.GI), "access"), path.Join(capabilities, driver.CI(g.Minor, s.GI, s.CI)))
		case g.MIG:
			shown = append(shown, fmt.Sprintf("%s/gpu%d", capabilities, g.Minor))
		}
	}
	return shown, nil
}

// maskedProcPaths lists, as paths of a container, everything in a directory below root that isn't
// shown. A directory without anything shown is masked as a whole. At the top only the entries of
// NVIDIA's drivers count.
func maskedProcPaths(root, dir string, shown []string) (masked []string, err error) {
	names, err := smallfile.Names(path.Join(root, dir))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		at := path.Join(dir, name)
		switch {
		case dir == "" && !strings.HasPrefix(name, "nvidia"), slices.Contains(shown, at):
		case slices.ContainsFunc(shown, func(s string) bool { return strings.HasPrefix(s, at+"/") }):
			below, err := maskedProcPaths(root, at, shown)
			if err != nil {
				return nil, err
			}
			masked = append(masked, below...)
		default:
			masked = append(masked, path.Join(ProcDriver, at))
		}
	}
	return masked, nil
}
