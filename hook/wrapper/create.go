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
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/hook/bundle"
	"github.com/berth-gpu/berth/hook/entry"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/isolation/ledger"
)

const (
	// LeaseAnnotation is the id of the lease for which berth has prepared a spec.
	LeaseAnnotation = "dev.berth.lease"
	// outerAnnotation is the path of the outer cgroup that berth created for a container.
	outerAnnotation = "dev.berth.cgroup"
)

// creation is a create, run or restore of one container.
type creation struct {
	Options
	call
	rt     Runtime
	trust  Trust
	bundle *bundle.Bundle
	node   Node
	owner  ledger.Owner
	lease  *ledger.Lease
	// process is this process, as far as the ledger has read it for a new lease.
	process ledger.Process
	// outer is the path of the outer cgroup, "" if the container has none.
	outer string
	// fromNVIDIA is set if the spec has additions of NVIDIA's tools that berth removes.
	fromNVIDIA bool
	// locked is set once the bundle is locked and known to serve no other container.
	locked bool
}

// createContainer prepares a container and execs the real runtime. It returns only on
// error, after it has released the lease and restored the bundle.
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

// configPath returns the value of crun's --config for [bundle.Open]. crun looks for a
// file with the default name in the bundle, and for any other in the working directory.
func (c call) configPath() string {
	if c.config == "config.json" {
		return ""
	}
	return c.config
}

// prepareBundle rewrites config.json for the real runtime. A bundle that needs no change
// is neither locked nor written; a rewrite that an earlier create left there is undone.
func (n *creation) prepareBundle(ctx context.Context) error {
	partial, req, asked, err := n.readRequest(ctx)
	if err != nil {
		return err
	}
	fromImage := entry.HasImageAnnotations(partial)
	if !fromImage {
		if err := checkDelegation(partial.Annotations); err != nil {
			return err
		}
	}
	if err := n.openNode(); err != nil {
		return err
	}
	prepare, err := n.needsPreparation(partial, asked)
	if err != nil {
		return err
	}
	if asked && n.verb == "restore" {
		return fmt.Errorf("restore container %s: it asks for devices, and a checkpoint has no state of devices: create it anew instead", n.id)
	}
	if !prepare {
		if err := n.checkPlainCgroup(partial); err != nil {
			return err
		}
	}
	rewrite := prepare || n.fromNVIDIA || fromImage
	rewritten, err := n.bundle.RewrittenSpec()
	if err != nil {
		return err
	}
	if !rewrite && rewritten == nil {
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
	if !rewrite {
		return n.bundle.Restore()
	}
	return n.rewriteBundle(ctx, req, asked, prepare)
}

// openNode opens the node unless it is open already.
func (n *creation) openNode() (err error) {
	if n.node == nil {
		n.node, err = n.Node()
	}
	return err
}

// readRequest returns what the container asks for, and the part of the spec that says
// so.
func (n *creation) readRequest(ctx context.Context) (partial *specs.Spec, req request.Request, asked bool, err error) {
	if partial, err = n.bundle.PartialSpec(); err != nil {
		return nil, request.Request{}, false, err
	}
	resolve, err := n.detectNVIDIA(ctx, partial)
	if err != nil {
		return nil, request.Request{}, false, err
	}
	req, asked, err = entry.FindRequest(partial, entry.RequestSet{}, n.trust, resolve)
	return partial, req, asked, err
}

// detectNVIDIA sets fromNVIDIA, and returns how devices of NVIDIA's CDI specs are
// resolved; nil if there are none. An exempt container keeps what NVIDIA's tools have
// added.
func (n *creation) detectNVIDIA(ctx context.Context, partial *specs.Spec) (entry.DeviceResolver, error) {
	if n.fromNVIDIA = entry.HasNVIDIAHooks(partial); !n.fromNVIDIA {
		return nil, nil
	}
	if err := n.openNode(); err != nil {
		return nil, err
	}
	exempt, err := n.node.IsExempt(partial, absolutePath(cmp.Or(n.call.bundle, ".")))
	if err != nil || exempt {
		n.fromNVIDIA = false
		return nil, err
	}
	return func(nodes []specs.LinuxDevice) ([]gpu.Device, error) { return n.node.IdentifyDevices(ctx, nodes) }, nil
}

// needsPreparation reports whether the container asks for devices, or could reach an
// accelerator or lift its device rules without asking. With --cgroup-manager=disabled,
// the runtime applies no device rules; such a container is refused.
func (n *creation) needsPreparation(spec *specs.Spec, asked bool) (needed bool, err error) {
	if n.noCgroup {
		spec = withoutDeviceRules(spec)
	}
	if needed = asked; !asked {
		bundle := absolutePath(cmp.Or(n.call.bundle, "."))
		if needed, err = n.node.CanReachAccelerator(spec, bundle); err == nil && !needed {
			needed, err = n.node.CanLiftDeviceRules(spec, bundle)
		}
	}
	if err == nil && needed && n.noCgroup {
		err = fmt.Errorf("--cgroup-manager=disabled gives container %s no cgroup, and so no device rules", n.id)
	}
	return needed, err
}

// withoutDeviceRules returns the spec as a runtime without cgroups applies it.
func withoutDeviceRules(spec *specs.Spec) *specs.Spec {
	if spec.Linux == nil {
		return spec
	}
	bare, linux := *spec, *spec.Linux
	bare.Linux, linux.Resources = &linux, nil
	return &bare
}

// checkUnused refuses a bundle that was rewritten for a container that still exists. The
// runtime of that container reads config.json again, and would find the devices of this
// one.
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

// recheckRequest reads the request again from a bundle that has changed since it was
// read without the lock. A request that differs is an error.
func (n *creation) recheckRequest(ctx context.Context, req request.Request, asked bool) error {
	_, again, still, err := n.readRequest(ctx)
	if err == nil && (still != asked || again != req) {
		err = errors.New("the bundle's request changed while it was read")
	}
	return err
}

// rewriteBundle takes the lease and writes config.json. Unless prepare is set, it only
// removes what [entry.StripSpec] removes.
func (n *creation) rewriteBundle(ctx context.Context, req request.Request, asked, prepare bool) (err error) {
	spec, err := n.bundle.Spec()
	if err != nil {
		return err
	}
	if err := entry.CheckPod(spec); err != nil {
		return err
	}
	notes := entry.StripSpec(spec)
	if !prepare {
		return n.writeStripped(spec, notes)
	}
	if n.lease, err = n.reservedLease(spec); err != nil {
		return err
	}
	if err := n.assignCgroup(spec, asked || n.lease != nil); err != nil {
		return err
	}
	if asked && n.lease == nil {
		if err := n.makeCgroup(); err != nil {
			return err
		}
		// Busy devices are an error at once: engines give a create little time.
		lease, err := n.node.Acquire(ctx, ledger.Ask{Owner: n.owner, Request: req})
		if err != nil {
			return err
		}
		n.lease, n.process = &lease, lease.Owner.Process
	}
	// After the lease is taken: of two with leases that are created at once, one sees the other.
	// A container without a lease that was checked before, and has no process yet, isn't seen.
	if err := n.checkCgroup(n.owner.Cgroup); err != nil {
		return err
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
	if n.lease != nil {
		edits.RefuseExitTracing(spec)
	}
	if err := n.createOuterCgroup(ctx, spec); err != nil {
		return err
	}
	if err := n.writeSpec(spec); err != nil {
		return err
	}
	n.logRemovals(slices.Concat(edits.Remarks(notes), removed))
	return nil
}

// reservedLease returns the lease that podman's precreate hook has taken for this
// container, nil if there is none. The hook names it in an entry among the spec's hooks,
// which no image can write.
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
		another := l.Owner.RuntimeRoot != "" || l.Owner.Container != "" && l.Owner.Container != n.id
		if l.ID == id && l.State == ledger.Reserved && l.Making && !another {
			return &l.Lease, nil
		}
	}
	return nil, fmt.Errorf("lease %s, to which a hook is to bind container %s, is not reserved for it", id, n.id)
}

// writeStripped writes the bundle of a container that berth leaves alone but for what
// [entry.StripSpec] removes.
func (n *creation) writeStripped(spec *specs.Spec, notes []string) error {
	if err := n.writeSpec(spec); err != nil {
		return err
	}
	owner, err := n.newOwner(n.call, n.rt, spec)
	if err != nil { // its cgroup is unknown, which the event log does not need
		owner = ledger.Owner{Container: n.id}
	}
	n.owner = owner
	n.logRemovals(edits.Remarks(notes))
	return nil
}

// logRemovals writes to the event log what was removed from the spec, if anything was.
func (n *creation) logRemovals(removed []edits.Removal) {
	switch {
	case len(removed) == 0:
	case n.lease == nil:
		n.node.LogRemovals("guarded", "", n.owner, removed)
	default:
		n.node.LogRemovals("prepared", n.lease.ID, n.lease.Owner, removed)
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

// rollBack restores the bundle, removes the outer cgroup and releases the lease, as far
// as they were taken. It also runs after the end of ctx.
func (n *creation) rollBack(ctx context.Context) (err error) {
	if n.locked {
		err = n.bundle.Restore()
	}
	ctx = context.WithoutCancel(ctx)
	if n.outer != "" {
		err = errors.Join(err, n.node.RemoveOuterCgroup(ctx, n.outer))
	}
	if n.lease != nil {
		err = errors.Join(err, n.node.Release(ctx, n.lease.ID))
	}
	return err
}
