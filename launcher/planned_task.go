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
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// PlannedTask is a task that was checked against this machine, for a container engine that
// makes and runs the container itself: the same options come to the same spec. Nothing
// is made by it but a few files.
type PlannedTask struct{ t *task }

// PlanTask checks options as Run does. detached: the terminal, if there is to be one,
// isn't this process's.
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

// ID is new; Name is the one that was asked for, or the id.
func (p *PlannedTask) ID() string { return p.t.plan.id }

// Name is what people call it.
func (p *PlannedTask) Name() string { return p.t.plan.name }

// Cgroup is all of the task's; the container's own is below it.
func (p *PlannedTask) Cgroup() string {
	return cmp.Or(p.t.o.Parent, tasks.CgroupParent) + "/" + p.t.plan.id
}

// StopTimeout is how long the task has between its stop signal and SIGKILL.
func (p *PlannedTask) StopTimeout() time.Duration { return p.t.o.StopTimeout }

// StopSignal is what the task is asked with to end; 0 is the usual one.
func (p *PlannedTask) StopSignal(c image.Config) (syscall.Signal, error) {
	word := cmp.Or(p.t.o.StopSignal, c.StopSignal)
	if word == "" {
		return 0, nil
	}
	return supervise.ParseSignal(word)
}

// WriteCIDFile writes the id into the file that --cidfile names, if it does.
func (p *PlannedTask) WriteCIDFile() error {
	p.t.paths.ID = p.t.plan.id
	return p.t.writeCID()
}

// Spec describes the task. root is its root file system, mounted, in which the working
// directory is made; dir is the task's directory, which gets its /etc/hosts and the like.
// programs are those that come with the devices, as DeviceSource.Programs has them. The error
// Is ErrNotFound or ErrCantInvoke for a command that couldn't be run.
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
