package berth

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/sysfs"
	"github.com/berth-gpu/berth/isolation"
)

// displays are the graphics nodes that have the major of accelerators and are none. They
// are looked for only where the spec could open one; of a spec whose rules runtimes could
// read differently it is an error, as it is for the wall.
func (n *Node) displays(spec *specs.Spec, majors []gpu.Major) ([]isolation.Number, error) {
	drm := slices.DeleteFunc(slices.Clone(majors), func(m gpu.Major) bool { return m.Name != "drm" })
	could, err := isolation.AcceleratorInSpec(spec, isolation.Host{Majors: drm})
	if err != nil || !could {
		return nil, err
	}
	nodes, err := sysfs.Displays(n.config.GPUHost())
	if err != nil {
		return nil, err
	}
	var all []isolation.Number
	for _, d := range nodes {
		all = append(all, isolation.Number{Major: int64(drm[0].Number), Minor: int64(d.Minor)})
	}
	return all, nil
}
