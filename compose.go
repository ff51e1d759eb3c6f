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
	"github.com/berth-gpu/berth/isolation"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Compose is Prepare without its last step: it writes the loader's cache into the root and
// returns the edits. Hooks use it, which apply the edits to a container that is being
// created.
func (n *Node) Compose(ctx context.Context, spec *specs.Spec, lease *ledger.Lease, root *os.File) (all edits.Edits, removed []edits.Removal, err error) {
	return n.compose(ctx, spec, lease, root, Plan{})
}

// compose is Compose or, if p.dryRun is set, its dry run, which needs no root.
func (n *Node) compose(ctx context.Context, spec *specs.Spec, lease *ledger.Lease, root *os.File, p Plan) (all edits.Edits, removed []edits.Removal, err error) {
	if p.Majors, err = gpu.ReadMajors(n.config.GPUHost()); err != nil {
		return edits.Edits{}, nil, err
	}
	// Other devices with an accelerator's major matter only if the spec opens such a major.
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
	// files writes into the root, so it comes last: a container that is refused gets no file.
	f, err := files()
	if err != nil {
		return edits.Edits{}, nil, err
	}
	all, err = edits.Merge(all, f.Edits)
	return all, append(edits.Remarks(f.Notes), removed...), err
}

// Plan is the input of [Compose]: plain data about the machine.
type Plan struct {
	Inventory gpu.Inventory
	// Majors are all character majors of the host. Accelerators are the majors of the
	// accelerators' drivers by name (snapshot.Key.Majors).
	Majors       []gpu.Major
	Accelerators map[string]uint32
	// Ordinary are devices that have an accelerator's major but are not accelerators.
	Ordinary []isolation.Number
	// Selection has the driver capabilities and features of the container.
	Selection cdi.Selection
	// Files are the edits that come with the devices: driver files (cdi.PrepareRoot), views,
	// sockets, and other vendors' devices.
	Files edits.Edits
	// Stat returns the device number of a bind mount's source. nil means stat on the host.
	Stat func(path string) (isolation.Number, bool)

	// dryRun means that the edits are only listed: nothing is created, mounted or waited
	// for, and the spec may already have the edits.
	dryRun bool
}

// Compose returns all edits that berth makes to a container. No other function combines
// edits. They remove foreign accelerators, add the lease's devices and the driver's files,
// restrict the device rules, and mask what can't be removed. Compose doesn't change the
// spec: the edits can be applied to the spec (edits.Edits.Apply) or, by a hook, to the
// container that is being created from it.
//
// Without a lease (nil) every accelerator is foreign. removed lists what the edits remove
// from the spec.
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
		if edits.HasCapability(spec, "CAP_LEASE") {
			removed = append(removed, edits.Removal{Kind: "capability", Name: "CAP_LEASE", Why: whyNoFileLeases})
		}
	}
	if all, err = edits.Merge(restricted, added); err != nil {
		return edits.Edits{}, nil, fmt.Errorf("prepare spec: %w", err)
	}
	return all, removed, nil
}

const whyNoFileLeases = "a lease on a file (fcntl F_SETLEASE) blocks every process that opens the file, and containers share the driver's files"

// leaseEdits returns the edits that add a lease's devices to a container.
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
	names := edits.Edits{Annotations: map[string]string{LeaseAnnotation: lease.ID}}
	names.AddReason("annotation", LeaseAnnotation, "names the lease")
	names.SetEnv("names the lease to programs inside", "BERTH_LEASE", lease.ID)
	names.SetEnv("lists the leased devices to programs inside", "BERTH_DEVICES", strings.Join(uuids, ","))
	return edits.Merge(devices, p.Files, names)
}
