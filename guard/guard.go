// Package guard keeps containers that hold no lease away from the host's accelerators.
//
// It answers, for the spec of a container that is about to be created: could the
// container reach an accelerator ([Guard.CanReachAccelerator]), does the admin exempt it
// ([Guard.IsExempt]), could it lift its own device rules
// ([Guard.CanLiftDeviceRules])? For the last kind it creates an outer cgroup with the same
// device rules ([Guard.CreateOuterCgroup]). [Guard.Evict] ends the holder of a lease.
//
// The device rules themselves are those of package isolation; package berth composes
// them with what a lease brings.
package guard

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/sysfs"
	"github.com/berth-gpu/berth/isolation"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Guard is the guard of one machine. It is safe for use by several goroutines.
type Guard struct {
	Host    gpu.Host
	Cgroups cgroup.Hierarchy
	Ledger  *ledger.Ledger
	// Disabled: the admin has turned the guard off, so every container is exempt.
	Disabled   bool
	Exemptions Exemptions
	// IsCommand reports whether a path is that of the cgroup of a host's command with a lease; nil means
	// that there are none.
	IsCommand func(cgroup string) bool
	// CloseCommand keeps further processes from entering such a cgroup.
	CloseCommand func(cgroup string) error
	// RuntimeRoots is the directory that notes further state directories of runtimes, see
	// runtimestate.Note; "" means that there are none.
	RuntimeRoots string
	// Units is the directory in which systemd reads the unit files of slices; "" means systemd's
	// own.
	Units string
}

// CanReachAccelerator reports whether a container of this spec could reach an accelerator of the
// host, so that it has to be prepared even without a lease. bundle is its directory, "" if it is
// unknown. Device rules that runtimes could read differently are an error. It is false if the admin
// has disabled the guard or exempts this container.
func (g Guard) CanReachAccelerator(spec *specs.Spec, bundle string) (bool, error) {
	if g.Disabled {
		return false, nil
	}
	majors, err := gpu.ReadMajors(g.Host)
	if err != nil {
		return false, err
	}
	h := isolation.Host{Majors: majors}
	reaches, err := isolation.AcceleratorInSpec(spec, h)
	if err != nil || !reaches {
		return false, err
	}
	if h.Ordinary, err = g.ListDisplays(majors); err != nil {
		return false, err
	}
	if len(h.Ordinary) > 0 {
		if reaches, err = isolation.AcceleratorInSpec(spec, h); err != nil || !reaches {
			return false, err
		}
	}
	exempt, err := g.IsExempt(spec, bundle)
	return !exempt, err
}

// CanLiftDeviceRules reports whether a container of this spec could remove its own device rules and
// then open an accelerator of the host: however few devices its rules allow, an outer cgroup has to
// carry them as well ([Guard.CreateOuterCgroup]). A host without an accelerator's driver is no
// exception: the driver may be loaded while the container runs. It is false if the admin has
// disabled the guard or exempts this container.
func (g Guard) CanLiftDeviceRules(spec *specs.Spec, bundle string) (bool, error) {
	if g.Disabled || !isolation.CanLiftDeviceRules(spec) {
		return false, nil
	}
	exempt, err := g.IsExempt(spec, bundle)
	return !exempt, err
}

// ListDisplays lists the graphics nodes that share a major with accelerators but are not
// accelerators, such as the display of a server's management controller.
func (g Guard) ListDisplays(majors []gpu.Major) ([]isolation.Number, error) {
	i := slices.IndexFunc(majors, func(m gpu.Major) bool { return m.Name == "drm" })
	if i < 0 {
		return nil, nil
	}
	nodes, err := sysfs.Displays(g.Host)
	if err != nil {
		return nil, err
	}
	var all []isolation.Number
	for _, d := range nodes {
		all = append(all, isolation.Number{Major: int64(majors[i].Number), Minor: int64(d.Minor)})
	}
	return all, nil
}
