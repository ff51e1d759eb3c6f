package wrapper

import (
	"cmp"
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/hook/entry"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// nvidia finds out whether NVIDIA's tools have put something into the spec that has to
// go, and says how their devices are told. In a container that is exempt it stays.
func (n *creation) nvidia(ctx context.Context, reach *specs.Spec) (entry.Named, error) {
	if n.foreign = entry.Foreign(reach); !n.foreign {
		return nil, nil
	}
	if err := n.open(); err != nil {
		return nil, err
	}
	exempt, err := n.node.Exempt(reach, absolute(cmp.Or(n.call.bundle, ".")))
	if err != nil || exempt {
		n.foreign = false
		return nil, err
	}
	return func(nodes []specs.LinuxDevice) ([]gpu.Device, error) { return n.node.Named(ctx, nodes) }, nil
}

// bare writes the bundle of a container that is let be, but for what was taken out.
func (n *creation) bare(spec *specs.Spec, taken []string) error {
	if err := n.write(spec); err != nil {
		return err
	}
	owner, err := n.Options.owner(n.call, n.rt, spec)
	if err != nil { // its cgroup can't be told; the log doesn't need it
		owner = ledger.Owner{Container: n.id}
	}
	n.owner = owner
	n.tell(taken)
	return nil
}
