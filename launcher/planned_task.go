package launcher

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// PlannedTask is a task whose options were checked against this machine, for a container engine
// that creates and runs the container itself. The same options yield the same spec as with Run.
type PlannedTask struct{ t *task }

// PlanTask checks options as Run does. detached means that the task doesn't use this process's
// terminal.
func PlanTask(o Options, detached bool) (*PlannedTask, error) {
	o = o.withDefaults()
	if o.StorageSize > 0 {
		return nil, errors.New("--storage-opt size: berth's own tasks alone have it; leave out --engine")
	}
	h, err := newHost(o)
	if err != nil {
		return nil, err
	}
	checked := o
	if detached {
		checked.Detach = &Detach{}
	}
	p, err := checked.planSingle(h)
	if err != nil {
		return nil, err
	}
	if o.CPUs != "" && !h.Cgroups.HasController("cpuset") {
		return nil, fmt.Errorf("--cpuset-cpus %s: %w", o.CPUs, h.RequireController("cpuset", "choose CPUs"))
	}
	return &PlannedTask{&task{o: o, h: h, plan: p}}, nil
}

// ID returns the task's id, which PlanTask has chosen.
func (p *PlannedTask) ID() string { return p.t.plan.id }

// Name returns the name that was asked for, or the id.
func (p *PlannedTask) Name() string { return p.t.plan.name }

// Cgroup returns the task's cgroup; the container's own cgroup is below it.
func (p *PlannedTask) Cgroup() string {
	return cmp.Or(p.t.o.Parent, tasks.CgroupParent) + "/" + p.t.plan.id
}

// StopTimeout returns the time from the stop signal to SIGKILL, as Lifecycle.StopTimeout.
func (p *PlannedTask) StopTimeout() time.Duration { return p.t.o.StopTimeout }

// StopSignal returns the signal that stops the task; 0 means SIGTERM.
func (p *PlannedTask) StopSignal(c image.Config) (syscall.Signal, error) {
	return p.t.o.chooseStopSignal(c)
}

// WriteCIDFile writes the task's id to Options.CIDFile if that is set.
func (p *PlannedTask) WriteCIDFile() error {
	p.t.paths.ID = p.t.plan.id
	return p.t.writeCIDFile()
}

// Spec returns the task's spec. root is the mounted root file system, in which the working directory
// is created; dir is the task's directory, in which /etc/hosts and the like are created. programs is
// the result of DeviceSource.Programs. The error Is rootfs.ErrNotFound or rootfs.ErrCantInvoke if the
// command can't be run.
func (p *PlannedTask) Spec(dir string, c image.Config, root *os.File, programs map[string]string) (*specs.Spec, error) {
	t := p.t
	t.paths = tasks.Paths{ID: t.plan.id, Dir: dir}
	t.programs = func() (map[string]string, error) { return programs, nil }
	if err := os.MkdirAll(t.paths.In("files"), 0o700); err != nil {
		return nil, fmt.Errorf("make task directory: %w", err)
	}
	b, err := t.describeContainer(&image.Image{Config: c}, root)
	if err != nil {
		return nil, err
	}
	b.Root, b.Cgroup = "rootfs", p.Cgroup()+"/container"
	config := spec.New(b)
	return config, t.setCPUs(t.o.CPUs, config)
}
