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
	// fromNVIDIA says that NVIDIA's tools have put something into the spec that has to go.
	fromNVIDIA bool
	// locked says that the bundle is locked and nobody else's container lives in it.
	locked bool
}

// createContainer prepares a container and becomes the real runtime. It returns only on
// error, with nothing left behind.
func (o Options) createContainer(ctx context.Context, c call, rt Runtime) (err error) {
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
	if err := n.prepareBundle(ctx); err != nil {
		return errors.Join(err, n.rollBack(ctx))
	}
	err = o.execRealRuntime(rt)
	return errors.Join(err, n.rollBack(ctx))
}

// configPath is where crun's --config points. It takes the default name below
// the bundle and any other below the working directory.
func (c call) configPath() string {
	if c.config == "config.json" {
		return ""
	}
	return c.config
}

// prepareBundle leaves the bundle as the real runtime shall read it.
func (n *creation) prepareBundle(ctx context.Context) error {
	reach, req, asked, err := n.readRequest(ctx)
	if err != nil {
		return err
	}
	if err := n.openNode(); err != nil {
		return err
	}
	walled, err := n.needsPreparation(reach, asked)
	if err != nil {
		return err
	}
	concerned := walled || n.fromNVIDIA
	rewritten, err := n.bundle.RewrittenSpec()
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
		if err := n.recheckRequest(ctx, req, asked); err != nil {
			return err
		}
	}
	if err := n.checkUnused(); err != nil {
		return err
	}
	n.locked = true
	if !concerned {
		return n.bundle.Restore()
	}
	return n.rewriteBundle(ctx, req, asked, walled)
}

// openNode opens the node, once.
func (n *creation) openNode() (err error) {
	if n.node == nil {
		n.node, err = n.Node()
	}
	return err
}

// readRequest finds out what the container asks for, in the part of the spec that says so.
func (n *creation) readRequest(ctx context.Context) (reach *specs.Spec, req gpu.Request, asked bool, err error) {
	if reach, err = n.bundle.Reach(); err != nil {
		return nil, gpu.Request{}, false, err
	}
	named, err := n.detectNVIDIA(ctx, reach)
	if err != nil {
		return nil, gpu.Request{}, false, err
	}
	req, asked, err = entry.FindRequest(reach, entry.RequestSet{}, n.trust, named)
	return reach, req, asked, err
}

// detectNVIDIA finds out whether NVIDIA's tools have put something into the spec that has to
// go, and says how their devices are told. In a container that is exempt it stays.
func (n *creation) detectNVIDIA(ctx context.Context, reach *specs.Spec) (entry.DeviceResolver, error) {
	if n.fromNVIDIA = entry.HasNVIDIAHooks(reach); !n.fromNVIDIA {
		return nil, nil
	}
	if err := n.openNode(); err != nil {
		return nil, err
	}
	exempt, err := n.node.Exempt(reach, absolutePath(cmp.Or(n.call.bundle, ".")))
	if err != nil || exempt {
		n.fromNVIDIA = false
		return nil, err
	}
	return func(nodes []specs.LinuxDevice) ([]gpu.Device, error) { return n.node.Named(ctx, nodes) }, nil
}

// needsPreparation says whether the container has to be prepared. A runtime that is told
// to do without cgroups heeds no device rules: nothing can be prepared there.
func (n *creation) needsPreparation(spec *specs.Spec, asked bool) (needsPreparation bool, err error) {
	if n.noCgroup {
		spec = withoutDeviceRules(spec)
	}
	if needsPreparation = asked; !asked {
		bundle := absolutePath(cmp.Or(n.call.bundle, "."))
		if needsPreparation, err = n.node.Concerned(spec, bundle); err == nil && !needsPreparation {
			needsPreparation, err = n.node.Unruly(spec, bundle)
		}
	}
	if err == nil && needsPreparation && n.noCgroup {
		err = fmt.Errorf("--cgroup-manager=disabled gives container %s no cgroup, and so no wall between it and the accelerators", n.id)
	}
	return needsPreparation, err
}

func withoutDeviceRules(spec *specs.Spec) *specs.Spec {
	if spec.Linux == nil {
		return spec
	}
	bare, linux := *spec, *spec.Linux
	bare.Linux, linux.Resources = &linux, nil
	return &bare
}

// checkUnused refuses a bundle that was rewritten for a container that still is: its
// runtime reads config.json again, and would find another one's devices.
func (n *creation) checkUnused() error {
	before, err := n.bundle.RewrittenSpec()
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
		made := Runtime{Name: l.Owner.Runtime}.hasContainer(l.Owner.RuntimeRoot, l.Owner.Container)
		if made || l.Live {
			return fmt.Errorf("bundle %s is in use by container %s (lease %s)", l.Owner.Bundle, l.Owner.Container, l.ID)
		}
	}
	return nil
}

// recheckRequest is for a bundle that has changed since it was read without the lock.
func (n *creation) recheckRequest(ctx context.Context, req gpu.Request, asked bool) error {
	_, again, still, err := n.readRequest(ctx)
	if err == nil && (still != asked || again != req) {
		err = errors.New("the bundle's request has changed while it was being read")
	}
	return err
}

// rewriteBundle writes the bundle as it shall be. One that isn't to be walled only loses what
// others than berth would do with accelerators.
func (n *creation) rewriteBundle(ctx context.Context, req gpu.Request, asked, walled bool) (err error) {
	spec, err := n.bundle.Spec()
	if err != nil {
		return err
	}
	if err := entry.CheckPod(spec); err != nil {
		return err
	}
	taken := entry.StripSpec(spec)
	if !walled {
		return n.writeStripped(spec, taken)
	}
	if n.lease, err = n.reservedLease(spec); err != nil {
		return err
	}
	if err := n.assignCgroup(spec, asked || n.lease != nil); err != nil {
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
	root, err := n.openRoot(spec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	removed, err := n.node.Prepare(ctx, spec, n.lease, root)
	if err != nil {
		return err
	}
	if err := n.createOuterCgroup(ctx, spec); err != nil {
		return err
	}
	if err := n.writeSpec(spec); err != nil {
		return err
	}
	n.logNotes(slices.Concat(edits.Remarks(taken), removed))
	return nil
}

// reservedLease is the lease that podman's precreate hook has taken for this container, nil
// if there is none. Its entry in the spec, which no image can write, binds the lease.
func (n *creation) reservedLease(spec *specs.Spec) (*ledger.Lease, error) {
	id := entry.BoundLease(spec)
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

// writeStripped writes the bundle of a container that is let be, but for what was taken out.
func (n *creation) writeStripped(spec *specs.Spec, taken []string) error {
	if err := n.writeSpec(spec); err != nil {
		return err
	}
	owner, err := n.Options.newOwner(n.call, n.rt, spec)
	if err != nil { // its cgroup can't be told; the log doesn't need it
		owner = ledger.Owner{Container: n.id}
	}
	n.owner = owner
	n.logNotes(edits.Remarks(taken))
	return nil
}

func (n *creation) logNotes(removed []edits.Removal) {
	switch {
	case len(removed) == 0:
	case n.lease == nil:
		n.node.Tell("guarded", "", n.owner, removed)
	default:
		n.node.Tell("prepared", n.lease.ID, n.lease.Owner, removed)
	}
}

// openRoot opens the container's root file system, which the engine has mounted.
func (n *creation) openRoot(spec *specs.Spec) (*os.File, error) {
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

// rollBack gives back what was taken. It works even after ctx has ended.
func (n *creation) rollBack(ctx context.Context) (err error) {
	if n.locked {
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
