package hook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/hook/bundle"
	"github.com/berth-gpu/berth/hook/entry"
	"github.com/berth-gpu/berth/hook/message"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/runtimestate"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Precreate is podman's stage: it reads the spec from in, and writes to out the spec
// that the runtime shall get. It takes the lease that the container asks for, applies
// all edits, and adds a hook that binds the lease to the container's init ([Hook.Bind]).
// Until then the lease is held by maker, the process of podman, for a minute at most. A spec without a request
// and without an accelerator is written byte for byte.
//
// For a container that is refused, the spec is written as it came, with one hook before
// all others that fails with the reason. podman shows what a runtime reports; of a
// failing precreate hook it shows only that it has failed.
//
// podman does not name the container at this stage. Its id is read from its cgroup's
// path.
func (h Hook) Precreate(ctx context.Context, in io.Reader, out io.Writer, own entry.RequestSet, maker int) error {
	data, err := io.ReadAll(io.LimitReader(in, runtimestate.MaxSpec+1))
	if err != nil {
		return fmt.Errorf("read spec: %w", err)
	}
	if len(data) > runtimestate.MaxSpec {
		return fmt.Errorf("read spec: more than the limit of %d bytes", runtimestate.MaxSpec)
	}
	doc, err := bundle.Parse(data)
	if err != nil {
		return fmt.Errorf("read spec: %w", err)
	}
	changed, lease, err := h.prepareDocument(ctx, doc, own, maker)
	if err != nil {
		err = errors.Join(err, h.releaseLease(ctx, lease))
		if changed, lease = h.refusalDocument(doc, err), nil; changed == nil {
			return err
		}
	}
	if _, err = out.Write(changed.Bytes()); err != nil {
		err = errors.Join(err, h.releaseLease(ctx, lease))
	}
	return err
}

func (h Hook) releaseLease(ctx context.Context, lease *ledger.Lease) error {
	if lease == nil {
		return nil
	}
	return h.Node.Release(context.WithoutCancel(ctx), lease.ID)
}

// refusalDocument returns the document of a refused container, whose first hook fails
// with the reason; nil if the document cannot be decoded.
func (h Hook) refusalDocument(doc *bundle.Document, why error) *bundle.Document {
	spec, err := doc.Spec()
	if err != nil {
		return nil
	}
	var hooks specs.Hooks
	if spec.Hooks != nil {
		hooks = *spec.Hooks
	}
	refuse := entry.NewHook(edits.Prestart, h.Call, entry.Refused, message.OneLine(message.WithAdvice(why).Error()))
	hooks.Prestart = append([]specs.Hook{refuse.Hook}, hooks.Prestart...) //nolint:staticcheck // runtimes run these before all others
	spec.Hooks = &hooks
	changed, err := doc.Edit(spec)
	if err != nil {
		return nil
	}
	return changed
}

// prepareDocument returns the document with all edits. The caller has to release the
// lease, also if there is an error beside it.
func (h Hook) prepareDocument(ctx context.Context, doc *bundle.Document, own entry.RequestSet, maker int) (*bundle.Document, *ledger.Lease, error) {
	spec, err := doc.Spec()
	if err == nil {
		err = entry.CheckPod(spec)
	}
	if err != nil {
		return nil, nil, err
	}
	fromNVIDIA, resolve, err := h.detectNVIDIA(ctx, spec)
	if err != nil {
		return nil, nil, err
	}
	req, asked, err := entry.FindRequest(spec, own, h.Trust, resolve)
	if err != nil {
		return nil, nil, err
	}
	concerned := asked
	if !asked {
		concerned, err = h.Node.CanReachAccelerator(spec, "")
	}
	if err != nil || !concerned && !fromNVIDIA {
		return doc, nil, err
	}
	taken := edits.Remarks(entry.StripSpec(spec))
	if !concerned {
		h.logRemovals(nil, podmanOwner(spec), taken)
		changed, err := doc.Edit(spec)
		return changed, nil, err
	}
	var lease *ledger.Lease
	if asked {
		if lease, err = h.reserveLease(ctx, spec, req, maker); err != nil {
			return nil, nil, err
		}
	}
	if err := h.editSpec(ctx, spec, lease, taken); err != nil {
		return nil, lease, err
	}
	changed, err := doc.Edit(spec)
	return changed, lease, err
}

// detectNVIDIA reports whether the spec has additions of NVIDIA's tools that berth removes, and
// returns the function that resolves their devices. It is false for an exempt container, which keeps
// the additions.
func (h Hook) detectNVIDIA(ctx context.Context, spec *specs.Spec) (has bool, named entry.DeviceResolver, err error) {
	if !entry.HasNVIDIAHooks(spec) {
		return false, nil, nil
	}
	exempt, err := h.Node.IsExempt(spec, "")
	if err != nil || exempt {
		return false, nil, err
	}
	return true, func(nodes []specs.LinuxDevice) ([]gpu.Device, error) { return h.Node.IdentifyDevices(ctx, nodes) }, nil
}

// reserveLease takes the lease. It releases one that an earlier attempt of the same
// maker left: podman creates a container in one attempt at a time, so that one has
// failed.
func (h Hook) reserveLease(ctx context.Context, spec *specs.Spec, req request.Request, maker int) (*ledger.Lease, error) {
	id := podmanID(spec)
	leases, err := h.Node.Leases()
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		if id != "" && l.Owner.Container == id && l.State == ledger.Reserved && l.Making &&
			l.Owner.EntryPoint == "podman" && l.Owner.Process.PID == maker {
			if err := h.Node.Release(ctx, l.ID); err != nil {
				return nil, err
			}
		}
	}
	lease, err := h.Node.Acquire(ctx, ledger.Ask{Request: req, Owner: ledger.Owner{
		EntryPoint: "podman", Container: id, UID: os.Getuid(), Command: bundle.CommandLine(spec), Process: ledger.Process{PID: maker}, Engine: true,
	}})
	return &lease, err
}

// editSpec applies the edits to the spec, as hooks where the runtime cannot apply them
// itself.
func (h Hook) editSpec(ctx context.Context, spec *specs.Spec, lease *ledger.Lease, taken []edits.Removal) error {
	if spec.Root == nil || spec.Root.Path == "" {
		return errors.New("the spec names no root file system")
	}
	root, err := inroot.OpenRoot(spec.Root.Path)
	if err != nil {
		return err
	}
	defer root.Close() // an O_PATH descriptor
	e, removed, err := h.Node.Compose(ctx, spec, lease, root)
	if err != nil {
		return err
	}
	h.logRemovals(lease, podmanOwner(spec), slices.Concat(taken, removed))
	e = e.DeferNet(h.Call...)
	if lease != nil {
		e.Hooks = append(slices.Clip(e.Hooks), entry.NewHook(edits.CreateRuntime, h.Call, "bind", "--lease", lease.ID))
		edits.RefuseExitTracing(spec)
	}
	return e.Apply(spec)
}

// podmanOwner returns the owner of a container of podman's, for the event log.
func podmanOwner(spec *specs.Spec) ledger.Owner {
	return ledger.Owner{EntryPoint: "podman", Container: podmanID(spec), UID: os.Getuid(), Command: bundle.CommandLine(spec)}
}

// podmanID returns the id that podman has written into the path of the cgroup:
// "/libpod_parent/libpod-ID", "machine.slice:libpod:ID", or, with --cgroups=split,
// "…/libpod-payload-ID". It is "" if there is none.
func podmanID(spec *specs.Spec) string {
	if spec.Linux == nil {
		return ""
	}
	name := spec.Linux.CgroupsPath
	if i := strings.LastIndexAny(name, "/:"); i >= 0 {
		name = name[i+1:]
	}
	name = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(name, "libpod-"), "payload-"), ".scope")
	if len(name) != 64 || strings.Trim(name, "0123456789abcdef") != "" {
		return ""
	}
	return name
}

// Bind makes the container of the state the holder of a lease that Precreate has taken.
// A lease that does not exist or is another container's is an error.
func (h Hook) Bind(ctx context.Context, state io.Reader, id string) error {
	c, err := h.readContainer(state)
	if err != nil {
		return err
	}
	place, err := h.ownCgroup(c)
	if err != nil {
		return err
	}
	h.noteRuntimeRoot(c)
	return h.bindLease(ctx, c, place, id)
}

func (h Hook) bindLease(ctx context.Context, c container, place, id string) error {
	leases, err := h.Node.Leases()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(leases, func(l ledger.Status) bool { return l.ID == id })
	switch {
	case i < 0:
		return fmt.Errorf("bind lease %s: %w", id, ledger.ErrNotFound)
	case leases[i].Owner.Container != "" && leases[i].Owner.Container != c.ID,
		leases[i].State == ledger.Bound && leases[i].Owner.Process.PID != c.Pid:
		return fmt.Errorf("bind lease %s to container %s: it is held by %s", id, c.ID, leases[i].Owner.Container)
	}
	return h.Node.Bind(ctx, id, c.newOwner(place))
}
