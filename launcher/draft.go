package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/rootfs"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// Draft is a task that was checked against this machine, for a container engine that
// makes and runs the container itself: the same options come to the same spec. Nothing
// is made by it but a few files.
type Draft struct{ t *task }

// NewDraft checks options as Run does. detached: the terminal, if there is to be one,
// isn't this process's.
func NewDraft(o Options, detached bool) (*Draft, error) {
	o = o.withDefaults()
	h, err := newHost(o)
	if err != nil {
		return nil, err
	}
	checked := o
	if detached {
		checked.Detach = &Detach{}
	}
	p, err := checked.planAlone(h)
	if err != nil {
		return nil, err
	}
	if o.CPUs != "" && !h.Cgroups.HasController("cpuset") {
		return nil, fmt.Errorf("--cpuset-cpus %s: %w", o.CPUs, h.RequireController("cpuset", "choose CPUs"))
	}
	return &Draft{&task{o: o, h: h, plan: p}}, nil
}

// ID is new; Name is the one that was asked for, or the id.
func (d *Draft) ID() string { return d.t.plan.id }

// Name is what people call it.
func (d *Draft) Name() string { return d.t.plan.name }

// Cgroup is all of the task's; the container's own is below it.
func (d *Draft) Cgroup() string { return or(d.t.o.Parent, cgroupParent) + "/" + d.t.plan.id }

// Grace is how long the task has between its stop signal and SIGKILL.
func (d *Draft) Grace() time.Duration { return d.t.o.StopTimeout }

// StopSignal is what the task is asked with to end; 0 is the usual one.
func (d *Draft) StopSignal(c image.Config) (syscall.Signal, error) {
	word := or(d.t.o.StopSignal, c.StopSignal)
	if word == "" {
		return 0, nil
	}
	return ParseSignal(word)
}

// Note writes the id into the file that --cidfile names, if it does.
func (d *Draft) Note() error {
	d.t.place.id = d.t.plan.id
	return d.t.writeCID()
}

// Spec describes the task. root is its root file system, mounted, in which the working
// directory is made; dir is the task's directory, which gets its /etc/hosts and the like.
// programs are those that come with the devices, as Berths.Programs has them. The error
// Is ErrNotFound or ErrCantInvoke for a command that couldn't be run.
func (d *Draft) Spec(dir string, c image.Config, root *os.File, programs map[string]string) (*specs.Spec, error) {
	t := d.t
	t.place = place{id: t.plan.id, dir: dir}
	t.programs = func() (map[string]string, error) { return programs, nil }
	if err := os.MkdirAll(t.place.in("files"), 0o700); err != nil {
		return nil, fmt.Errorf("make task directory: %w", err)
	}
	b, err := t.describe(&image.Image{Config: c}, root)
	if err != nil {
		return nil, err
	}
	b.Root, b.Cgroup = "rootfs", d.Cgroup()+"/container"
	config := spec.New(b)
	return config, t.placeOn(t.o.CPUs, config)
}

// Described is what an engine is told of a command in a container that runs: what Exec
// would tell a runtime. bundle is where the container's config.json is, pid its first
// process.
func (in Inside) Described(bundle string, pid int) (*specs.Process, error) {
	in = in.withDefaults()
	if err := in.check(); err != nil {
		return nil, err
	}
	root, err := rootfs.Open(filepath.Join("/proc", strconv.Itoa(pid), "root"))
	if err != nil {
		return nil, fmt.Errorf("open the container's root: %w", err)
	}
	p, err := in.process(filepath.Join(bundle, "config.json"), root)
	return p, errors.Join(err, root.Close())
}

// ExitCode is the exit code of an error that Run would have ended with.
func ExitCode(err error) int { return supervise.ExitCode(err) }
