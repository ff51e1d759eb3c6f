package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/cpulist"
	"github.com/berth-gpu/berth/isolation/devices"
	"github.com/berth-gpu/berth/launcher/spec"
)

// outerCgroupTimeout bounds setting the device rules of an outer cgroup.
const outerCgroupTimeout = 10 * time.Second

// enterParent calls Options.Place, and makes the task's cgroup below the result.
func (t *task) enterParent(ctx context.Context, config *specs.Spec) error {
	if t.o.Place == nil {
		return nil
	}
	parent, err := t.o.Place(ctx)
	if err != nil {
		return err
	}
	t.h.Cgroups.Top = parent
	return t.moveContainer(parent, config)
}

// moveContainer notes that the task's cgroup, with that of its container, is below another cgroup than was planned, and
// begins to make it.
func (t *task) moveContainer(parent string, config *specs.Spec) error {
	if err := t.o.CheckControllers(t.h.Host); err != nil {
		return err
	}
	if err := t.noteParent(parent); err != nil {
		return err
	}
	config.Linux.CgroupsPath = t.paths.Cgroup() + "/container"
	t.waitPrepared = inBackground(t.prepareRuntime)
	return nil
}

// noteParent notes in the task's directory and record which cgroup the task's is below.
func (t *task) noteParent(parent string) error {
	link := t.paths.ParentLink()
	if err := errors.Join(os.Remove(link), os.Symlink(parent, link)); err != nil {
		return fmt.Errorf("note the task's cgroup: %w", err)
	}
	t.rec.Cgroup = t.paths.Cgroup()
	return nil
}

// enterParent is [task.enterParent] for a gang: the cgroups of the ranks are below the gang's.
func (g *gang) enterParent(ctx context.Context) error {
	if g.o.Place == nil {
		return nil
	}
	parent, err := g.o.Place(ctx)
	if err != nil {
		return err
	}
	g.task.h.Cgroups.Top = parent // the ranks have the same host
	if err := g.task.noteParent(parent); err != nil {
		return err
	}
	return g.forEachRank(func(_ int, r *rank) error { return r.moveContainer(g.task.paths.Cgroup(), r.spec) })
}

// createOuterCgroup creates the task's cgroup with the container's device rules, and then the
// cgroups below it, if the container could change the rules of its own cgroup. For other tasks
// prepareRuntime has created the cgroup, without rules.
func (t *task) createOuterCgroup(ctx context.Context, config *specs.Spec) error {
	if !t.h.privileges.NeedsOuterCgroup {
		return nil
	}
	if err := t.waitPrepared(); err != nil {
		return err
	}
	var rules []edits.Rule
	for _, r := range config.Linux.Resources.Devices {
		rules = append(rules, edits.FromSpec(r))
	}
	ctx, cancel := context.WithTimeout(ctx, outerCgroupTimeout)
	defer cancel()
	if err := devices.CreateOuterCgroup(ctx, t.h.Cgroups, t.paths.Cgroup(), rules); err != nil {
		return err
	}
	return t.h.Cgroups.CreateTask(t.paths.Cgroup())
}

// setCPUs restricts the task to the CPUs of a list that this process may use. CPUs that the user
// asked for must be usable; CPUs near a device are a preference.
//
// The container's cpuset restricts the task if the machine has that controller. Otherwise the
// calling thread's affinity does, which the runtime inherits, or for a rank the record's CPUs, which
// the gang's monitor applies.
func (t *task) setCPUs(list string, config *specs.Spec) error {
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
