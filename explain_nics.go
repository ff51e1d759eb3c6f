package berth

import (
	"context"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi"
	"github.com/berth-gpu/berth/gpu"
)

// ofNICs finds out what the leased RDMA adapters bring.
func (x *explainer) ofNICs(ctx context.Context, spec *specs.Spec, lease string, nics []gpu.Device) error {
	s, err := x.n.snapshot(ctx)
	if err != nil {
		return err
	}
	x.plan.Inventory, x.plan.Accelerators = s.Inventory, s.Key.Majors
	if x.nics, _, err = x.n.grantedNICEdits(spec, s.Inventory, nics, lease); err != nil {
		return err
	}
	why := func(of ...gpu.Device) string {
		return "RDMA device " + strings.TrimPrefix(cdi.HCANames(s.Inventory, of), "=")
	}
	for i, n := range x.nics.Nodes { // each device's, and one for all
		if x.nodes[n.Path] = why(nics...); i < len(nics) {
			x.nodes[n.Path] = why(nics[i])
		}
	}
	for _, m := range x.nics.Mounts {
		x.mounts[m.Destination] = why(nics...) + ": what /sys shows of such devices"
	}
	own, err := x.n.processLimits()
	if err != nil {
		return err
	}
	limits, _ := cdi.RDMALimits(nil, own)
	x.limits = limits.Rlimits
	return nil
}

// explainLimits names those that a leased adapter raises.
func (x *explainer) explainLimits(limits []specs.POSIXRlimit) {
	for _, l := range limits {
		if slices.Contains(x.limits, l) {
			x.say("limit", l.Type, "", "RDMA and NCCL need more than engines give")
		}
	}
}
