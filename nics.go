package berth

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// addNICEdits adds to the plan the edits for leased RDMA adapters. It hides all adapters
// from a container that has leased GPUs but no adapter. The remarks describe what the
// container lacks for RDMA.
func (n *Node) addNICEdits(ctx context.Context, p *Plan, spec *specs.Spec, lease *ledger.Lease) (remarks []edits.Removal, err error) {
	gpus, nics, _ := splitDevices(lease.Devices)
	var e edits.Edits
	switch {
	case len(nics) > 0:
		s, err := n.loadSnapshot(ctx)
		if err != nil {
			return nil, err
		}
		p.Inventory, p.Accelerators = s.Inventory, s.Key.Majors
		if e, remarks, err = n.grantedNICEdits(p, spec, nics, lease.ID); err != nil {
			return nil, err
		}
		if note := describeFarNICs(s.Inventory, lease); note != "" {
			remarks = append(remarks, edits.Remark("%s", note))
		}
	case len(gpus) > 0 && !hasInfiniBandNode(p.Files):
		e = n.nicSource().HiddenEdits()
	}
	p.Files, err = edits.Merge(p.Files, e)
	return remarks, err
}

// describeFarNICs returns a remark if nics=auto found no adapter near the GPUs, else "".
func describeFarNICs(inv gpu.Inventory, lease *ledger.Lease) string {
	r, err := request.Parse(lease.Request)
	if err != nil {
		return "" // another version of berth has written the request
	}
	return match.DescribeFarNICs(inv, r, lease.Devices)
}

// grantedNICEdits returns the edits for leased adapters.
func (n *Node) grantedNICEdits(p *Plan, spec *specs.Spec, nics []gpu.Device, lease string) (e edits.Edits, remarks []edits.Removal, err error) {
	inv, source := p.Inventory, n.nicSource()
	source.DryRun = p.dryRun
	if e, err = source.Edits(inv, nics, lease, hasMountAt(spec, "/sys")); err != nil {
		return e, nil, err
	}
	move, err := n.placeNICs(inv, nics, n.networkOf(spec))
	if err != nil || spec.Process == nil {
		return e, nil, err
	}
	e.RDMALinks, e.RDMAInterfaces = move.Links, move.Interfaces
	if own := lookupVariable(spec.Process.Env, cdi.HCAVariable); own != "" && own != e.Env[cdi.HCAVariable] {
		delete(e.Env, cdi.HCAVariable)
		if note := cdi.CheckChosenHCAs(own, inv, nics); note != "" {
			remarks = append(remarks, edits.Remark("%s", note))
		}
	}
	own, err := n.processLimits()
	if err != nil {
		return e, nil, err
	}
	limits, low := cdi.RDMALimits(spec.Process.Rlimits, own)
	e, err = edits.Merge(e, limits)
	return e, append(remarks, low...), err
}

func (n *Node) nicSource() cdi.NICs {
	return cdi.NICs{Host: n.config.GPUHost(), State: n.config.TaskState(), InUse: n.inUse}
}

// hasInfiniBandNode reports whether edits add an adapter's node, as another vendor's CDI
// device can.
func hasInfiniBandNode(e edits.Edits) bool {
	return slices.ContainsFunc(e.Nodes, func(n edits.Node) bool { return strings.HasPrefix(n.Path, "/dev/infiniband/") })
}

func hasMountAt(spec *specs.Spec, destination string) bool {
	return slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return path.Clean(m.Destination) == destination })
}

// processLimits returns the resource limits that this process can set for a container. Root
// of a user namespace can't raise any.
func (n *Node) processLimits() (o cdi.ProcessLimits, err error) {
	var locked, files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &locked); err != nil {
		return o, fmt.Errorf("read own limit of locked memory: %w", err)
	}
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return o, fmt.Errorf("read own limit of open files: %w", err)
	}
	o.Memlock, o.NoFile = locked.Max, files.Max
	proc := n.config.GPUHost()
	status, err := smallfile.String(proc.ProcPath("self/status"))
	if err != nil {
		return o, err
	}
	ids, err := smallfile.String(proc.ProcPath("self/uid_map"))
	caps, _ := process.Mask(status, "CapEff") // 0 if the line is missing
	o.Raises = strings.HasSuffix(ids, "4294967295") && caps&(1<<unix.CAP_SYS_RESOURCE) != 0
	return o, err
}

// resourceEdits returns limitEdits with the admin's files for NCCL.
func (n *Node) resourceEdits(common shared.Dir, dryRun bool) (edits.Edits, error) {
	p := n.config.Policy
	files, err := cdi.NCCLFiles(common, p.NCCLConf, p.NCCLTopology, dryRun)
	if err != nil {
		return edits.Edits{}, fmt.Errorf("policy: %w", err)
	}
	return edits.Merge(n.limitEdits(), files)
}

// limitEdits returns edits for what engines limit too much for containers with GPUs: NUMA
// memory policy and the size of /dev/shm, as far as policy allows.
func (n *Node) limitEdits() (e edits.Edits) {
	p := n.config.Policy
	if p.MemoryPolicy == nil || *p.MemoryPolicy {
		e.Calls = edits.MemoryPolicy()
	}
	if p.Shm != "engine" {
		e.Shm = cmp.Or(p.Shm, "50%")
	}
	return e
}

// The kinds of network that a job can have.
const (
	NetworkHost    = "host"    // the host's
	NetworkPrivate = "private" // its own
	NetworkNone    = "none"    // its own, without a way out
	NetworkRDMA    = "rdma"    // its own, into which interfaces of the host may move
)

// RDMAMode is how the kernel divides RDMA devices among network namespaces. A machine has
// one mode.
type RDMAMode string

// The modes.
const (
	RDMAShared    RDMAMode = "shared"    // each namespace may use all devices
	RDMAExclusive RDMAMode = "exclusive" // a device is in one namespace, as a network interface is
)

// NICMove lists the devices that have to move into a job's network namespace so that its
// RDMA adapters work there.
type NICMove struct {
	// Links are RDMA devices; they move in exclusive mode.
	Links []string
	// Interfaces are network interfaces, which keep their names.
	Interfaces []string
}

// PlaceNICs returns what has to move so that leased adapters work in a kind of network. An
// adapter that can't work there is an error: RoCE adapters use the addresses of their
// network interface, which has to be in the same namespace. Devices that aren't adapters
// are skipped. PlaceNICs is pure.
func PlaceNICs(inv gpu.Inventory, leased []gpu.Device, mode RDMAMode, network string) (m NICMove, err error) {
	for _, d := range leased {
		nic, ok := inv.NIC(d)
		if !d.IsNIC() || network == NetworkHost {
			continue
		}
		if !ok {
			return NICMove{}, fmt.Errorf("device %s: the node doesn't have it any more", d.UUID)
		}
		if mode == RDMAExclusive {
			m.Links = append(m.Links, nic.Name)
		}
		if !isRoCE(nic) {
			continue
		}
		names := strings.Join(nic.Netdevs, ", ")
		switch {
		case names == "":
			return NICMove{}, fmt.Errorf("RDMA device %s is RoCE, and has no network interface whose addresses it could use", nic.Name)
		case network != NetworkRDMA:
			return NICMove{}, fmt.Errorf("RDMA device %s is RoCE and uses the addresses of %s, which isn't in a network of the job's own: it works with the host's network, or with network rdma", nic.Name, names)
		case d.Shared:
			return NICMove{}, fmt.Errorf("RDMA device %s is RoCE and uses the addresses of %s, which can't go into the job's network while policy.nics leases it to several: it works with the host's network", nic.Name, names)
		}
		m.Interfaces = append(m.Interfaces, nic.Netdevs...)
	}
	return m, nil
}

func isRoCE(n gpu.NIC) bool {
	return slices.ContainsFunc(n.Ports, func(p gpu.Port) bool { return p.LinkLayer == "Ethernet" })
}

// placeNICs is [PlaceNICs] on this node. It is an error if the interface of the host's default route
// would have to move.
func (n *Node) placeNICs(inv gpu.Inventory, nics []gpu.Device, network string) (NICMove, error) {
	if network == NetworkHost {
		return NICMove{}, nil
	}
	m, err := PlaceNICs(inv, nics, n.rdmaMode(), network)
	if err != nil || len(m.Interfaces) == 0 {
		return m, err
	}
	routes, err := smallfile.String(n.config.GPUHost().ProcPath("net/route"))
	if err != nil {
		return NICMove{}, err
	}
	if name := findDefaultRoute(routes, m.Interfaces); name != "" {
		return NICMove{}, fmt.Errorf("network interface %s can't go into the job's network: it is the machine's way out", name)
	}
	return m, nil
}

// findDefaultRoute finds the first of the interfaces that has a default route in
// /proc/net/route. Source: proc_pid_net(5).
func findDefaultRoute(routes string, interfaces []string) string {
	for line := range strings.Lines(routes) {
		f := strings.Fields(line)
		if len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" && slices.Contains(interfaces, f[0]) {
			return f[0]
		}
	}
	return ""
}

// rdmaMode reads how the kernel divides RDMA devices among network namespaces. A kernel
// without RDMA or before 5.3 has no such parameter, and counts as RDMAShared.
func (n *Node) rdmaMode() RDMAMode {
	word, err := smallfile.String(n.config.GPUHost().SysPath("module/ib_core/parameters/netns_mode"))
	if err != nil || word == "Y" || word == "1" {
		return RDMAShared
	}
	return RDMAExclusive
}

// NetworkAnnotation names the kind of network in the spec of a task whose network berth has
// created. In other specs the annotation is ignored.
const NetworkAnnotation = "dev.berth.network"

// networkOf returns the kind of network that a spec gives a container. A network namespace
// that the container joins counts as private, except that of a task, whose kind is in the
// launcher's annotation.
func (n *Node) networkOf(spec *specs.Spec) string {
	if spec.Linux == nil {
		return NetworkHost
	}
	i := slices.IndexFunc(spec.Linux.Namespaces, func(s specs.LinuxNamespace) bool { return s.Type == specs.NetworkNamespace })
	if i < 0 {
		return NetworkHost
	}
	tasks := filepath.Join(n.config.Data, "tasks") + "/"
	if kind := spec.Annotations[NetworkAnnotation]; kind != "" && strings.HasPrefix(spec.Linux.Namespaces[i].Path, tasks) {
		return kind
	}
	return NetworkPrivate
}
