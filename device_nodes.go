package berth

import (
	"context"
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu"
)

// maxGPUMinor is the highest minor of a GPU. The driver uses higher minors for nodes that
// all GPUs share.
const maxGPUMinor = 247

// IdentifyDevices returns the GPUs and slices to which the device nodes belong, in the
// inventory's order. A GPU is identified by its node, a slice by its GPU's node and both of
// its capability nodes. Nodes of other drivers, and nodes that all GPUs share, are skipped.
// A GPU that isn't in the inventory is an error, and so is a GPU in MIG mode without a slice.
func (n *Node) IdentifyDevices(ctx context.Context, nodes []specs.LinuxDevice) ([]gpu.Device, error) {
	s, err := n.loadSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	return devicesOfNodes(s.Inventory, s.Key.Majors, nodes)
}

func devicesOfNodes(inv gpu.Inventory, majors map[string]uint32, nodes []specs.LinuxDevice) (all []gpu.Device, err error) {
	minors, caps := splitMinors(majors, nodes)
	for _, g := range inv.GPUs {
		i := slices.Index(minors, g.Minor)
		if i < 0 {
			continue
		}
		minors = slices.Delete(minors, i, i+1)
		if !g.MIG {
			all = append(all, g.Device())
			continue
		}
		before := len(all)
		for _, s := range g.Slices {
			if slices.Contains(caps, s.GIMinor) && slices.Contains(caps, s.CIMinor) {
				all = append(all, g.SliceDevice(s))
			}
		}
		if len(all) == before {
			return nil, fmt.Errorf("GPU %d (%s) is in MIG mode, and none of its slices is named", g.Index, g.UUID)
		}
	}
	if len(minors) > 0 {
		return nil, fmt.Errorf("device node /dev/nvidia%d belongs to no GPU of this machine", minors[0])
	}
	return all, nil
}

// splitMinors returns the minors of GPU nodes and of capability nodes, each once.
func splitMinors(majors map[string]uint32, nodes []specs.LinuxDevice) (gpus, caps []int) {
	for _, d := range nodes {
		if d.Type != "c" {
			continue
		}
		minor := int(d.Minor)
		switch {
		case hasMajor(majors, d.Major, "nvidia-caps"):
			caps = append(caps, minor)
		case hasMajor(majors, d.Major, "nvidia", "nvidia-frontend") && minor <= maxGPUMinor && !slices.Contains(gpus, minor):
			gpus = append(gpus, minor)
		}
	}
	return gpus, caps
}

func hasMajor(majors map[string]uint32, major int64, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		m, ok := majors[name]
		return ok && int64(m) == major
	})
}
