package launcher

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/cpulist"
	"github.com/berth-gpu/berth/launcher/spec"
)

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
