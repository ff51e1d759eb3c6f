package berth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/guard"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/isolation"
	"github.com/berth-gpu/berth/isolation/binds"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// LeaseAnnotation is set on a container that holds a lease: its value is the id.
const LeaseAnnotation = guard.LeaseAnnotation

// Prepare changes the spec of a container that is about to be created, and writes
// the loader's cache into its root. With a lease it also restricts what the spec's own bind
// mounts bring in of the host. root is the root file system's directory; it
// may be nil when there is no lease. It returns what was removed from the spec, and
// what else is remarkable.
//
// A hook of berth's moves network devices into the container.
func (n *Node) Prepare(ctx context.Context, spec *specs.Spec, lease *ledger.Lease, root *os.File) (removed []edits.Removal, err error) {
	var restricted []edits.Removal
	if lease != nil {
		if gpus, _, _ := splitDevices(lease.Devices); len(gpus) > 0 {
			if err := n.MountFiles(ctx); err != nil { // binds of the files are replaced by those of the mount
				return nil, err
			}
		}
		if restricted, err = n.restrictBinds(ctx, spec, lease.Owner.Bundle); err != nil {
			return nil, err
		}
	}
	all, removed, err := n.Compose(ctx, spec, lease, root)
	if err != nil {
		return nil, err
	}
	removed = append(restricted, removed...)
	return removed, all.DeferNet(n.config.hookCall()...).Apply(spec)
}

// restrictBinds changes the bind mounts of a container with a lease, such that none brings in
// writable cgroups, sysfs or procfs of the host, nor the driver's files with their owner. It
// returns what was changed.
func (n *Node) restrictBinds(ctx context.Context, spec *specs.Spec, bundle string) (changed []edits.Removal, err error) {
	if !slices.ContainsFunc(spec.Mounts, binds.IsBind) {
		return nil, nil // the mount table can be long
	}
	table, err := binds.ReadTable()
	if err != nil {
		return nil, err
	}
	h := binds.Host{Table: table, KeepCgroups: true, Bundle: bundle}
	files := n.config.SharedFiles()
	if binds.Reaches(spec.Mounts, bundle, files.Source) { // also where the lease has no GPU, and so needs none
		if _, err := files.MountIfSupported(ctx); err != nil {
			return nil, err
		}
	}
	if files.IsMounted() {
		h.Files, h.FilesMount = files.Source, files.Mount
	}
	mounts, notes, err := h.Restrict(spec.Mounts)
	if err != nil {
		return nil, err
	}
	spec.Mounts = mounts
	return edits.Remarks(notes), nil
}

// Compose is Prepare without the last step: the loader's cache is written into the
// root, and what else has to change is returned. It is for who can't change the
// spec any more.
func (n *Node) Compose(ctx context.Context, spec *specs.Spec, lease *ledger.Lease, root *os.File) (all edits.Edits, removed []edits.Removal, err error) {
	return n.compose(ctx, spec, lease, root, Plan{})
}

// compose is Compose or, as the plan says, its dry run, which needs no root.
func (n *Node) compose(ctx context.Context, spec *specs.Spec, lease *ledger.Lease, root *os.File, p Plan) (all edits.Edits, removed []edits.Removal, err error) {
	if p.Majors, err = gpu.ReadMajors(n.config.GPUHost()); err != nil {
		return edits.Edits{}, nil, err
	}
	// Only a spec that opens an accelerator's major needs to know what else has it.
	reaches, err := isolation.AcceleratorInSpec(spec, isolation.Host{Majors: p.Majors})
	if err == nil && reaches {
		p.Ordinary, err = n.guard.ListDisplays(p.Majors)
	}
	if err != nil {
		return edits.Edits{}, nil, err
	}
	if lease == nil {
		return Compose(spec, nil, p)
	}
	if root == nil && !p.dryRun {
		return edits.Edits{}, nil, errors.New("prepare spec: a lease needs the container's root")
	}
	gpus, _, named := splitDevices(lease.Devices)
	var files func() (cdi.Prepared, error)
	if len(gpus) > 0 {
		gather := n.gatherGPUs
		if p.dryRun {
			gather = n.describeGPUs
		}
		if files, err = gather(ctx, &p, spec, root, *lease); err != nil {
			return edits.Edits{}, nil, err
		}
	}
	if len(named) > 0 {
		if err := n.gatherCDI(ctx, &p, spec, named); err != nil {
			return edits.Edits{}, nil, err
		}
	}
	lacks, err := n.addNICEdits(ctx, &p, spec, lease)
	if err != nil {
		return edits.Edits{}, nil, err
	}
	all, removed, err = Compose(spec, lease, p)
	removed = slices.Concat(n.RemarkOccupied(gpus), lacks, removed)
	if err != nil || files == nil {
		return all, removed, err
	}
	// At last, for it writes into the root: what is refused leaves nothing there.
	f, err := files()
	if err != nil {
		return edits.Edits{}, nil, err
	}
	all, err = edits.Merge(all, f.Edits)
	return all, append(edits.Remarks(f.Notes), removed...), err
}

// Plan is what Prepare works from: plain data, gathered beforehand.
type Plan struct {
	Inventory gpu.Inventory
	// Majors are the host's character majors; Accelerators those of the
	// accelerators' drivers by name (snapshot.Key.Majors).
	Majors       []gpu.Major
	Accelerators map[string]uint32
	// Ordinary are devices that have an accelerator's major and are none.
	Ordinary []isolation.Number
	// Selection is what the container gets beside its devices, as far as the
	// admin allows.
	Selection cdi.Selection
	// Files are the edits that bring in what goes with the devices: the driver's
	// files (cdi.PrepareRoot), views and sockets, and other vendors' devices.
	Files edits.Edits
	// Stat finds out what the source of a bind mount is; nil asks the host.
	Stat func(path string) (isolation.Number, bool)

	// dryRun: the edits are to be listed. Nothing is made, mounted or waited for, and the
	// spec may be one that they were applied to.
	dryRun bool
}

// Compose is the only composer of what berth changes in a container: foreign
// accelerators go, the lease's devices and the driver's files come, the device
// rules are restricted, and what is left over is masked. It reads the spec and
// changes nothing; what it returns can be applied to the spec (edits.Edits.Apply)
// or, by a hook, to the container that is being made of it.
//
// Without a lease (nil) it is the guard: every accelerator is foreign. removed lists
// what the spec loses.
func Compose(spec *specs.Spec, lease *ledger.Lease, p Plan) (all edits.Edits, removed []edits.Removal, err error) {
	added := edits.Edits{}
	if lease != nil {
		if added, err = p.leaseEdits(*lease); err != nil {
			return edits.Edits{}, nil, err
		}
	}
	restricted, removed, err := isolation.RestrictDevices(spec, isolation.Host{Majors: p.Majors, Ordinary: p.Ordinary, Stat: p.Stat}, added.Nodes)
	if err != nil {
		return edits.Edits{}, nil, err
	}
	if lease != nil {
		added.DropCapabilities = append(added.DropCapabilities, "CAP_LEASE")
		if hasCapability(spec, "CAP_LEASE") {
			removed = append(removed, edits.Removal{Kind: "capability", Name: "CAP_LEASE", Why: whyLease})
		}
	}
	if all, err = edits.Merge(restricted, added); err != nil {
		return edits.Edits{}, nil, fmt.Errorf("prepare spec: %w", err)
	}
	return all, removed, nil
}

const whyLease = "its leases on files (fcntl F_SETLEASE) hold up every process that opens them, and containers have the driver's files in common"

// hasCapability says whether the container's processes can have the capability.
func hasCapability(spec *specs.Spec, name string) bool {
	return spec.Process != nil && spec.Process.Capabilities != nil &&
		slices.ContainsFunc(spec.Process.Capabilities.Bounding, func(has string) bool { return strings.EqualFold(has, name) })
}

// leaseEdits returns what a lease brings into a container.
func (p Plan) leaseEdits(lease ledger.Lease) (edits.Edits, error) {
	gpus, _, _ := splitDevices(lease.Devices)
	devices, err := cdi.Devices(p.Inventory, gpus, p.Accelerators, p.Selection)
	if err != nil {
		return edits.Edits{}, fmt.Errorf("prepare lease %s: %w", lease.ID, err)
	}
	var uuids []string
	for _, d := range lease.Devices {
		if !slices.Contains(uuids, d.UUID) {
			uuids = append(uuids, d.UUID)
		}
	}
	told := edits.Edits{Annotations: map[string]string{LeaseAnnotation: lease.ID}}
	told.AddReason("annotation", LeaseAnnotation, "names the lease")
	told.SetEnv("names the lease to programs inside", "BERTH_LEASE", lease.ID)
	told.SetEnv("lists the leased devices to programs inside", "BERTH_DEVICES", strings.Join(uuids, ","))
	return edits.Merge(devices, p.Files, told)
}

// hookCall is how a spec calls berth-hook: its path, and the words that come first.
func (c Config) hookCall() []string {
	if c.path == "" {
		return []string{c.HookCommand()}
	}
	return []string{c.HookCommand(), "--config", c.path}
}

// OpenRoot opens the directory of a container's root file system for
// [Node.Prepare]. The path is trusted: links in it are followed.
func OpenRoot(path string) (*os.File, error) { return inroot.OpenRoot(path) }
