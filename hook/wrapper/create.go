package wrapper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/hook/bundle"
	"github.com/berth-gpu/berth/hook/entry"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/isolation/ledger"
)

const (
	// RequestAnnotation carries a request: docker run --annotation berth.gpus=2.
	RequestAnnotation = entry.Annotation
	// LeaseAnnotation is in a spec that berth has prepared for a lease.
	LeaseAnnotation = "dev.berth.lease"
	// outerAnnotation names the outer cgroup that berth made for a container.
	outerAnnotation = "dev.berth.cgroup"
)

// creation is one container on its way to the real runtime.
type creation struct {
	Options
	call
	rt     Runtime
	trust  Trust
	bundle *bundle.Bundle
	node   Node
	owner  ledger.Owner
	lease  *ledger.Lease
	// outer is the cgroup around the container's own, "" if it has none.
	outer string
	// foreign says that NVIDIA's tools have put something into the spec that has to go.
	foreign bool
	// ours says that the bundle is locked and nobody else's container lives in it.
	ours bool
}

// create prepares a container and becomes the real runtime. It returns only on
// error, with nothing left behind.
func (o Options) create(ctx context.Context, c call, rt Runtime) (err error) {
	trust, err := o.Trust()
	if err != nil {
		return err
	}
	dir := cmp.Or(c.bundle, ".")
	b, err := bundle.Open(dir, c.configPath())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	n := &creation{Options: o, call: c, rt: rt, trust: trust, bundle: b}
	if err := n.prepare(ctx); err != nil {
		return errors.Join(err, n.undo(ctx))
	}
	err = o.become(rt)
	return errors.Join(err, n.undo(ctx))
}

// configPath is where crun's --config points. It takes the default name below
// the bundle and any other below the working directory.
func (c call) configPath() string {
	if c.config == "config.json" {
		return ""
	}
	return c.config
}

// prepare leaves the bundle as the real runtime shall read it.
func (n *creation) prepare(ctx context.Context) error {
	reach, req, asked, err := n.read(ctx)
	if err != nil {
		return err
	}
	if err := n.open(); err != nil {
		return err
	}
	walled, err := n.concerned(reach, asked)
	if err != nil {
		return err
	}
	concerned := walled || n.foreign
	rewritten, err := n.bundle.Rewritten()
	if err != nil {
		return err
	}
	if !concerned && rewritten == nil {
		return nil
	}
	changed, err := n.bundle.Lock()
	if err != nil {
		return err
	}
	if changed {
		if err := n.readAgain(ctx, req, asked); err != nil {
			return err
		}
	}
	if err := n.vacant(); err != nil {
		return err
	}
	n.ours = true
	if !concerned {
		return n.bundle.Restore()
	}
	return n.rewrite(ctx, req, asked, walled)
}

// open opens the node, once.
func (n *creation) open() (err error) {
	if n.node == nil {
		n.node, err = n.Node()
	}
	return err
}

// read finds out what the container asks for, in the part of the spec that says so.
func (n *creation) read(ctx context.Context) (reach *specs.Spec, req gpu.Request, asked bool, err error) {
	if reach, err = n.bundle.Reach(); err != nil {
		return nil, gpu.Request{}, false, err
	}
	named, err := n.nvidia(ctx, reach)
	if err != nil {
		return nil, gpu.Request{}, false, err
	}
	req, asked, err = entry.RequestOf(reach, entry.Asked{}, n.trust, named)
	return reach, req, asked, err
}

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

// concerned says whether the container has to be prepared. A runtime that is told
// to do without cgroups heeds no device rules: nothing can be prepared there.
func (n *creation) concerned(spec *specs.Spec, asked bool) (concerned bool, err error) {
	if n.uncontrolled {
		spec = withoutRules(spec)
	}
	if concerned = asked; !asked {
		bundle := absolute(cmp.Or(n.call.bundle, "."))
		if concerned, err = n.node.Concerned(spec, bundle); err == nil && !concerned {
			concerned, err = n.node.Unruly(spec, bundle)
		}
	}
	if err == nil && concerned && n.uncontrolled {
		err = fmt.Errorf("--cgroup-manager=disabled gives container %s no cgroup, and so no wall between it and the accelerators", n.id)
	}
	return concerned, err
}

func withoutRules(spec *specs.Spec) *specs.Spec {
	if spec.Linux == nil {
		return spec
	}
	bare, linux := *spec, *spec.Linux
	bare.Linux, linux.Resources = &linux, nil
	return &bare
}

// vacant refuses a bundle that was rewritten for a container that still is: its
// runtime reads config.json again, and would find another one's devices.
func (n *creation) vacant() error {
	before, err := n.bundle.Rewritten()
	if err != nil || before == nil || before.Annotations[LeaseAnnotation] == "" {
		return err
	}
	leases, err := n.node.Leases()
	if err != nil {
		return err
	}
	for _, l := range leases {
		if l.ID != before.Annotations[LeaseAnnotation] {
			continue
		}
		made := Runtime{Name: l.Owner.Runtime}.has(l.Owner.RuntimeRoot, l.Owner.Container)
		if made || l.Live {
			return fmt.Errorf("bundle %s is in use by container %s (lease %s)", l.Owner.Bundle, l.Owner.Container, l.ID)
		}
	}
	return nil
}

// readAgain is for a bundle that has changed since it was read without the lock.
func (n *creation) readAgain(ctx context.Context, req gpu.Request, asked bool) error {
	_, again, still, err := n.read(ctx)
	if err == nil && (still != asked || again != req) {
		err = errors.New("the bundle's request has changed while it was being read")
	}
	return err
}

// rewrite writes the bundle as it shall be. One that isn't to be walled only loses what
// others than berth would do with accelerators.
func (n *creation) rewrite(ctx context.Context, req gpu.Request, asked, walled bool) (err error) {
	spec, err := n.bundle.Spec()
	if err != nil {
		return err
	}
	if err := entry.OfPod(spec); err != nil {
		return err
	}
	taken := entry.Strip(spec)
	if !walled {
		return n.bare(spec, taken)
	}
	if n.lease, err = n.reserved(spec); err != nil {
		return err
	}
	if err := n.settle(spec, asked || n.lease != nil); err != nil {
		return err
	}
	if asked && n.lease == nil {
		// Engines give a create little time: what is busy is an error at once.
		lease, err := n.node.Acquire(ctx, ledger.Ask{Owner: n.owner, Request: req})
		if err != nil {
			return err
		}
		n.lease = &lease
	}
	root, err := n.root(spec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	removed, err := n.node.Prepare(ctx, spec, n.lease, root)
	if err != nil {
		return err
	}
	if err := n.enclose(ctx, spec); err != nil {
		return err
	}
	if err := n.write(spec); err != nil {
		return err
	}
	n.tell(slices.Concat(edits.Remarks(taken), removed))
	return nil
}

// reserved is the lease that podman's precreate hook has taken for this container, nil
// if there is none. Its entry in the spec, which no image can write, binds the lease.
func (n *creation) reserved(spec *specs.Spec) (*ledger.Lease, error) {
	id := entry.Bound(spec)
	if id == "" {
		return nil, nil
	}
	leases, err := n.node.Leases()
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		theirs := l.Owner.RuntimeRoot != "" || l.Owner.Container != "" && l.Owner.Container != n.id
		if l.ID == id && l.State == ledger.Reserved && l.Making && !theirs {
			return &l.Lease, nil
		}
	}
	return nil, fmt.Errorf("lease %s, which a hook is to bind container %s to, isn't kept for it", id, n.id)
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
	n.tell(edits.Remarks(taken))
	return nil
}

func (n *creation) tell(removed []edits.Removal) {
	switch {
	case len(removed) == 0:
	case n.lease == nil:
		n.node.Tell("guarded", "", n.owner, removed)
	default:
		n.node.Tell("prepared", n.lease.ID, n.lease.Owner, removed)
	}
}

// root opens the container's root file system, which the engine has mounted.
func (n *creation) root(spec *specs.Spec) (*os.File, error) {
	if spec.Root == nil || spec.Root.Path == "" {
		return nil, errors.New("the bundle names no root file system")
	}
	path := spec.Root.Path
	if !filepath.IsAbs(path) {
		path = filepath.Join(cmp.Or(n.call.bundle, "."), path)
	}
	root, err := inroot.OpenRoot(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("root file system %s is missing", path)
	}
	return root, err
}

// undo gives back what was taken. It works even after ctx has ended.
func (n *creation) undo(ctx context.Context) (err error) {
	if n.ours {
		err = n.bundle.Restore()
	}
	ctx = context.WithoutCancel(ctx)
	if n.outer != "" {
		err = errors.Join(err, n.node.Unclose(ctx, n.outer))
	}
	if n.lease != nil {
		err = errors.Join(err, n.node.Release(ctx, n.lease.ID))
	}
	return err
}
