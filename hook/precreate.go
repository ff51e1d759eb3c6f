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
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Precreate is podman's stage: the spec comes in, and goes out as the runtime shall
// have it. It takes the lease that the container asks for, applies all edits, and
// adds a hook that binds the lease to the container's first process ([Hook.Bind]).
// Until then the lease lives as long as maker, which is podman. A spec without a
// request and without an accelerator goes out byte for byte.
//
// A container that is refused goes out as it came, but for a hook before all others that ends it
// with the reason: podman shows what a runtime says, and of this stage nothing but that
// it has failed.
//
// podman doesn't name the container here; its id is read from where its cgroup is
// to be.
func (h Hook) Precreate(ctx context.Context, in io.Reader, out io.Writer, own entry.RequestSet, maker int) error {
	data, err := io.ReadAll(io.LimitReader(in, bundle.Limit+1))
	if err != nil {
		return fmt.Errorf("read spec: %w", err)
	}
	if len(data) > bundle.Limit {
		return fmt.Errorf("read spec: more than the limit of %d bytes", bundle.Limit)
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

// refusalDocument is the document of a container that can't be: its first hook says why, and
// fails. nil if the document can't be read.
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

// prepareDocument returns the document as it shall be. The lease, if there is one, is the
// caller's, also beside an error.
func (h Hook) prepareDocument(ctx context.Context, doc *bundle.Document, own entry.RequestSet, maker int) (*bundle.Document, *ledger.Lease, error) {
	spec, err := doc.Spec()
	if err == nil {
		err = entry.CheckPod(spec)
	}
	if err != nil {
		return nil, nil, err
	}
	foreign, named, err := h.detectNVIDIA(ctx, spec)
	if err != nil {
		return nil, nil, err
	}
	req, asked, err := entry.FindRequest(spec, own, h.Trust, named)
	if err != nil {
		return nil, nil, err
	}
	concerned := asked
	if !asked {
		concerned, err = h.Node.Concerned(spec, "")
	}
	if err != nil || !concerned && !foreign {
		return doc, nil, err
	}
	taken := edits.Remarks(entry.StripSpec(spec))
	if !concerned {
		h.logNotes(nil, podmanOwner(spec), taken)
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

// detectNVIDIA says whether NVIDIA's tools have put something into the spec that has to go,
// and how their devices are told. In a container that is exempt it stays.
func (h Hook) detectNVIDIA(ctx context.Context, spec *specs.Spec) (detectNVIDIA bool, named entry.DeviceResolver, err error) {
	if !entry.HasNVIDIAHooks(spec) {
		return false, nil, nil
	}
	exempt, err := h.Node.Exempt(spec, "")
	if err != nil || exempt {
		return false, nil, err
	}
	return true, func(nodes []specs.LinuxDevice) ([]gpu.Device, error) { return h.Node.Named(ctx, nodes) }, nil
}

// reserveLease takes the lease. One that an earlier try of the same maker left, whose
// container never came to be, is given back: podman makes a container once at a time.
func (h Hook) reserveLease(ctx context.Context, spec *specs.Spec, req request.Request, maker int) (*ledger.Lease, error) {
	id := podmanID(spec)
	leases, err := h.Node.Leases()
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		if id != "" && l.Owner.Container == id && l.State == ledger.Reserved && l.Making &&
			l.Owner.Door == "podman" && l.Owner.Process.PID == maker {
			if err := h.Node.Release(ctx, l.ID); err != nil {
				return nil, err
			}
		}
	}
	lease, err := h.Node.Acquire(ctx, ledger.Ask{Request: req, Owner: ledger.Owner{
		Door: "podman", Container: id, UID: os.Getuid(), Command: bundle.CommandLine(spec), Process: ledger.Process{PID: maker},
	}})
	return &lease, err
}

// editSpec applies what has to change, and what a runtime doesn't do itself as hooks.
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
	h.logNotes(lease, podmanOwner(spec), slices.Concat(taken, removed))
	e = entry.DeferToHooks(e, h.Call...)
	if lease != nil {
		e.Hooks = append(slices.Clip(e.Hooks), entry.NewHook(edits.CreateRuntime, h.Call, "bind", "--lease", lease.ID))
	}
	return e.Apply(spec)
}

// podmanOwner is the owner of a container of podman's, for the log.
func podmanOwner(spec *specs.Spec) ledger.Owner {
	return ledger.Owner{Door: "podman", Container: podmanID(spec), UID: os.Getuid(), Command: bundle.CommandLine(spec)}
}

// podmanID reads the id that podman has put into the name of the cgroup:
// "/libpod_parent/libpod-ID", "machine.slice:libpod:ID", or, with --cgroups=split,
// "…/libpod-payload-ID". "" if there is none.
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

// Bind records the container of the state as the holder of a lease that Precreate
// has taken. That the lease is another one's, or gone, makes the runtime give up.
func (h Hook) Bind(ctx context.Context, state io.Reader, id string) error {
	c, err := h.readContainer(state)
	if err != nil {
		return err
	}
	place, err := h.ownCgroup(c)
	if err != nil {
		return err
	}
	return h.bindLease(ctx, c, place, id)
}

func (h Hook) bindLease(ctx context.Context, c creating, place, id string) error {
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
