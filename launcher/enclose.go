package launcher

import (
	"context"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/devices"
)

// outerPatience is how long the walls outside may take.
const outerPatience = 10 * time.Second

// enclose puts the device rules of a task that could take off its own on the cgroup
// around it as well, and then makes what is in there. A usual task has none: it
// can't reach its rules.
func (t *task) enclose(ctx context.Context, spec *specs.Spec) error {
	if !t.h.privileges.CanLiftDeviceRules {
		return nil
	}
	if err := t.ground(); err != nil {
		return err
	}
	h, err := cgroup.Detect(t.o.Cgroup)
	if err != nil {
		return err
	}
	var rules []edits.Rule
	for _, r := range spec.Linux.Resources.Devices {
		rules = append(rules, edits.FromSpec(r))
	}
	ctx, cancel := context.WithTimeout(ctx, outerPatience)
	defer cancel()
	if err := devices.MakeOuter(ctx, h, t.place.Cgroup(), rules); err != nil {
		return err
	}
	return t.h.Cgroups.CreateTask(t.place.Cgroup())
}
