package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/hook/bundle"
	"github.com/berth-gpu/berth/hook/entry"
	"github.com/berth-gpu/berth/hook/inject"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/netdev"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// leaseAnnotation is in a spec that berth has prepared for a lease.
const leaseAnnotation = "dev.berth.lease"

// Node is what hooks that make a container need of a machine.
type Node interface {
	Leases
	// Concerned says whether a spec without a request could reach an accelerator.
	// bundle is its directory, "" if it isn't known.
	Concerned(spec *specs.Spec, bundle string) (bool, error)
	// Exempt says whether the admin lets a container that asks for nothing see what it
	// would see without berth.
	Exempt(spec *specs.Spec, bundle string) (bool, error)
	// Named says which GPUs and slices device nodes belong to.
	Named(ctx context.Context, nodes []specs.LinuxDevice) ([]gpu.Device, error)
	// Acquire takes a lease. It fills in the inventory.
	Acquire(ctx context.Context, ask ledger.Ask) (ledger.Lease, error)
	// Bind records init and cgroup of a container as the proof that it lives, and what
	// the lease doesn't know of its id and bundle.
	Bind(ctx context.Context, id string, o ledger.Owner) error
	// Compose says what has to change for the lease's devices, or without any, and
	// writes the loader's cache into the root.
	Compose(ctx context.Context, spec *specs.Spec, lease *ledger.Lease, root *os.File) (edits.Edits, []string, error)
	// Release gives a lease back. One that is gone is no error.
	Release(ctx context.Context, id string) error
	// Tell adds to the log of events what was remarkable about a container.
	Tell(event, lease string, owner ledger.Owner, notes []string)
}

// Hook is a hook's surroundings. Node, Cgroups and SetRules are required by the
// stages that use them.
type Hook struct {
	Node    Node
	Cgroups cgroup.Hierarchy
	// SetRules replaces the device rules of a cgroup that exists.
	SetRules func(path string, rules []edits.Rule) error
	// Proc and Dev are where procfs and the host's nodes are, "" for the usual places.
	Proc, Dev string
	// Trust says which words of strangers are requests.
	Trust entry.Trust
	// Call is how this program is called again: its path, and the words that come
	// before the stage.
	Call []string
}

// Create gives a container that is just being created what it asks for: by its
// hooks (own is this call's), or by its annotation. It is for createRuntime and
// prestart; that it is called at both is the same as once.
//
// A container that holds a lease already was prepared by who took it, and one that
// asks for nothing is only walled off, if it could reach an accelerator at all. On
// an error, which makes the runtime give up the container, no lease is left; what
// was done to the container ends with it.
func (h Hook) Create(ctx context.Context, state io.Reader, own entry.Asked) error {
	c, err := h.container(state)
	if err != nil {
		return err
	}
	if err := entry.OfPod(c.spec); err != nil {
		return err
	}
	held, err := h.holds(c)
	if err != nil || held {
		return err
	}
	req, asked, err := entry.RequestOf(c.spec, own, h.Trust, nil)
	if err != nil {
		return err
	}
	if !asked {
		if concerned, err := h.Node.Concerned(c.spec, c.Bundle); err != nil || !concerned {
			return err
		}
	}
	place, err := h.place(c)
	if err != nil {
		return err
	}
	if !asked {
		return h.inject(ctx, c, place, nil)
	}
	if err := h.endFormer(ctx, c, place); err != nil {
		return err
	}
	lease, err := h.take(ctx, c, place, req)
	if err != nil {
		return err
	}
	if err := h.inject(ctx, c, place, &lease); err != nil {
		return errors.Join(err, h.Node.Release(context.WithoutCancel(ctx), lease.ID))
	}
	return nil
}

// Mount binds a directory or file of the host, read-only, at a path in a container
// that is being created. It serves a runtime that doesn't make such a mount itself.
func (h Hook) Mount(ctx context.Context, state io.Reader, source, destination string) error {
	if !filepath.IsAbs(source) || !filepath.IsAbs(destination) {
		return fmt.Errorf("mount %s at %s: both have to be absolute paths", source, destination)
	}
	c := creating{spec: &specs.Spec{}} // of which nothing else is needed
	var err error
	if c.State, err = creatingState(state); err != nil {
		return err
	}
	if c.root, err = readRoot(c.State); err != nil {
		return err
	}
	return inject.Apply(ctx, h.injected(c, ""), edits.Edits{Mounts: []specs.Mount{{
		Destination: destination, Type: "bind", Source: source,
		Options: []string{"rbind", "ro", "nosuid", "nodev", "noexec", "rprivate"},
	}}})
}

// NetDevices moves network devices of the host into a container that is being created.
func (h Hook) NetDevices(state io.Reader, devices []netdev.Device) error {
	if err := netdev.Valid(devices); err != nil {
		return err
	}
	s, err := creatingState(state)
	if err != nil {
		return err
	}
	return inject.Container{PID: s.Pid, Proc: h.Proc}.Take(devices)
}

// RDMA moves RDMA devices of the host, and network interfaces that are theirs, into a
// container that is being created.
func (h Hook) RDMA(state io.Reader, links, interfaces []string) error {
	s, err := creatingState(state)
	if err != nil {
		return err
	}
	return inject.Container{PID: s.Pid, Proc: h.Proc}.TakeRDMA(links, interfaces)
}

// creating is a container on its way.
type creating struct {
	specs.State
	spec *specs.Spec
	root string
}

// container reads what is known of the container that the state names: the spec is
// the one that the runtime reads.
func (h Hook) container(state io.Reader) (c creating, err error) {
	if c.State, err = creatingState(state); err != nil {
		return c, err
	}
	if err := hasBundle(c.State); err != nil {
		return c, err
	}
	if c.spec, err = readSpec(c.Bundle); err != nil {
		return c, err
	}
	path := ""
	if c.spec.Root != nil {
		path = c.spec.Root.Path
	}
	c.root, err = rootOf(c.State, path)
	return c, err
}

func hasBundle(s specs.State) error {
	if !filepath.IsAbs(s.Bundle) {
		return fmt.Errorf("container %s has no bundle", s.ID)
	}
	return nil
}

// rootOf is the root file system that a bundle names by this path.
func rootOf(s specs.State, path string) (string, error) {
	switch {
	case path == "":
		return "", errors.New("the bundle names no root file system")
	case filepath.IsAbs(path):
		return path, nil
	}
	return filepath.Join(s.Bundle, path), nil
}

// readRoot finds the root file system of the container, and reads nothing else.
func readRoot(s specs.State) (root string, err error) {
	if err := hasBundle(s); err != nil {
		return "", err
	}
	b, err := bundle.Open(s.Bundle, "")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	path, err := b.Root()
	if err != nil {
		return "", err
	}
	return rootOf(s, path)
}

// creatingState reads the state of a container that has a process, and hasn't started.
func creatingState(r io.Reader) (specs.State, error) {
	s, err := decodeState(r)
	switch {
	case err != nil:
		return s, err
	case s.Status != specs.StateCreating && s.Status != specs.StateCreated:
		return s, fmt.Errorf("container %s is %s: it is too late for its devices", s.ID, s.Status)
	case s.Pid <= 0:
		return s, fmt.Errorf("container %s has no process yet", s.ID)
	}
	return s, nil
}

func readSpec(dir string) (spec *specs.Spec, err error) {
	b, err := bundle.Open(dir, "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if spec, err = b.Rewritten(); err != nil || spec != nil {
		return spec, err
	}
	return b.Spec()
}

// holds says that the container has its lease: this very process is bound to one,
// or the spec names one that is the container's and whose maker is still at it. A
// lease of an earlier life of the same container isn't it.
func (h Hook) holds(c creating) (bool, error) {
	leases, err := h.Node.Leases()
	if err != nil {
		return false, err
	}
	for _, l := range leases {
		if l.Owner.Container != c.ID || l.Owner.Bundle != "" && !sameBundle(l.Owner.Bundle, c.Bundle) {
			continue
		}
		if l.State == ledger.Reserved && l.Making && l.ID == c.spec.Annotations[leaseAnnotation] {
			return true, nil
		}
		started, err := process.Start(cmp.Or(h.Proc, "/proc"), c.Pid)
		if err != nil {
			return false, err
		}
		if l.Owner.Process.PID == c.Pid && l.Owner.Process.Start == started {
			return true, nil
		}
	}
	return false, nil
}

// place is the container's cgroup: its own, for the rules of it are changed and its
// processes counted.
func (h Hook) place(c creating) (string, error) {
	proc := cmp.Or(h.Proc, "/proc")
	path, err := h.Cgroups.ProcessPath(proc, c.Pid)
	if err != nil {
		return "", fmt.Errorf("tell the cgroup of container %s: %w", c.ID, err)
	}
	ours, err := h.Cgroups.ProcessPath(proc, os.Getpid())
	switch {
	case err != nil && !errors.Is(err, cgroup.ErrPath):
		return "", fmt.Errorf("tell the cgroup of this hook: %w", err)
	case path == "/", err == nil && cgroup.IsWithin(ours, path):
		return "", fmt.Errorf("container %s is in cgroup %s, which isn't its own: there would be no wall between it and the accelerators", c.ID, path)
	}
	return path, nil
}

// take leases what is asked for, to the container's first process from the first
// moment: whatever happens to this hook, the lease ends with it.
func (h Hook) take(ctx context.Context, c creating, place string, req gpu.Request) (ledger.Lease, error) {
	owner := c.owner(place)
	lease, err := h.Node.Acquire(ctx, ledger.Ask{Owner: owner, Request: req})
	if err != nil {
		return lease, err
	}
	if err := h.Node.Bind(ctx, lease.ID, owner); err != nil {
		return lease, errors.Join(err, h.Node.Release(context.WithoutCancel(ctx), lease.ID))
	}
	return lease, nil
}

func (c creating) owner(place string) ledger.Owner {
	return ledger.Owner{
		Door: "hook", Container: c.ID, Bundle: filepath.Clean(c.Bundle), UID: os.Getuid(),
		Command: command(c.spec), Cgroup: place, Process: ledger.Process{PID: c.Pid},
	}
}

// tell has the log say what was closed, if anything was.
func (h Hook) tell(lease *ledger.Lease, owner ledger.Owner, notes []string) {
	switch {
	case len(notes) == 0:
	case lease == nil:
		h.Node.Tell("guarded", "", owner, notes)
	default:
		h.Node.Tell("prepared", lease.ID, lease.Owner, notes)
	}
}

func command(spec *specs.Spec) string {
	if spec.Process == nil {
		return ""
	}
	return strings.Join(spec.Process.Args, " ")
}

// inject composes the edits and applies them.
func (h Hook) inject(ctx context.Context, c creating, place string, lease *ledger.Lease) error {
	root, err := inroot.OpenRoot(c.root)
	if err != nil {
		return err
	}
	defer root.Close() // an O_PATH descriptor
	e, notes, err := h.Node.Compose(ctx, c.spec, lease, root)
	if err != nil {
		return err
	}
	if err := inject.Apply(ctx, h.injected(c, place), e); err != nil {
		return fmt.Errorf("bring devices into container %s: %w", c.ID, err)
	}
	h.tell(lease, c.owner(place), notes)
	return nil
}

func (h Hook) injected(c creating, place string) inject.Container {
	return inject.Container{
		PID: c.Pid, Root: c.root, Spec: c.spec, Proc: h.Proc, Dev: h.Dev,
		SetRules: func(rules []edits.Rule) error { return h.SetRules(place, rules) },
	}
}
