package launcher

import (
	"context"
	"fmt"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/cpulist"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/devices"
	"github.com/berth-gpu/berth/launcher/spec"
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

// placeOn keeps the task on CPUs in list format, as far as this process may use
// them: by a cpuset where the controller is there, by the affinity of the calling
// thread, which the runtime inherits, where it isn't. CPUs that the user asked
// for must exist; those near a device are a preference. A gang's rank is started by its
// monitor, which is told.
func (t *task) placeOn(list string, config *specs.Spec) error {
	if list == "" {
		return nil
	}
	usable, err := spec.UsableCPUs(list)
	switch {
	case err != nil:
		return err
	case len(usable) == 0 && t.o.CPUs != "":
		return fmt.Errorf("none of the CPUs %s can be used here", list)
	case len(usable) == 0:
		t.o.Log.Info("no CPU near the devices can be used", "near", list)
		return nil
	case t.h.Cgroups.HasController("cpuset"):
		spec.SetCPUs(config, cpulist.Format(usable))
		return nil
	case t.plan.member != nil:
		t.rec.CPUs = cpulist.Format(usable)
		return nil
	}
	var set unix.CPUSet
	for _, cpu := range usable {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("keep the task on CPUs %s: %w", list, err)
	}
	return nil
}
