package berth

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// addNICEdits fills in the plan for leased RDMA adapters, or hides all of them from a
// container that has GPUs and none. The remarks say what the container lacks for RDMA.
func (n *Node) addNICEdits(ctx context.Context, p *Plan, spec *specs.Spec, lease *ledger.Lease) (remarks []edits.Removal, err error) {
	gpus, nics, _ := split(lease.Devices)
	var e edits.Edits
	switch {
	case len(nics) > 0:
		s, err := n.snapshot(ctx)
		if err != nil {
			return nil, err
		}
		p.Inventory, p.Accelerators = s.Inventory, s.Key.Majors
		if e, remarks, err = n.grantedNICEdits(spec, s.Inventory, nics, lease.ID); err != nil {
			return nil, err
		}
		if note := farNICs(s.Inventory, lease); note != "" {
			remarks = append(remarks, edits.Remark("%s", note))
		}
	case len(gpus) > 0 && !bringsRDMA(p.Files):
		e = n.nicSource().HiddenEdits()
	}
	p.Files, err = edits.Merge(p.Files, e)
	return remarks, err
}

// farNICs says that nics=auto found no adapter near the GPUs.
func farNICs(inv gpu.Inventory, lease *ledger.Lease) string {
	r, err := request.Parse(lease.Request)
	if err != nil {
		return "" // of another version of berth
	}
	return match.DescribeFarNICs(inv, r, lease.Devices)
}

// grantedNICEdits is what a container gets of the leased adapters.
func (n *Node) grantedNICEdits(spec *specs.Spec, inv gpu.Inventory, nics []gpu.Device, lease string) (e edits.Edits, remarks []edits.Removal, err error) {
	if e, err = n.nicSource().Edits(inv, nics, lease, hasMountAt(spec, "/sys")); err != nil {
		return e, nil, err
	}
	move, err := n.placeNICs(inv, nics, n.networkOf(spec))
	if err != nil || spec.Process == nil {
		return e, nil, err
	}
	e.RDMALinks, e.RDMAInterfaces = move.Links, move.Interfaces
	if own := variable(spec.Process.Env, cdi.HCAVariable); own != "" && own != e.Env[cdi.HCAVariable] {
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
	return cdi.NICs{Host: n.config.GPUHost(), State: n.config.State, InUse: n.inUse}
}

// bringsRDMA says that another vendor's device brings an adapter's nodes.
func bringsRDMA(e edits.Edits) bool {
	return slices.ContainsFunc(e.Nodes, func(n edits.Node) bool { return strings.HasPrefix(n.Path, "/dev/infiniband/") })
}

func hasMountAt(spec *specs.Spec, destination string) bool {
	return slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return path.Clean(m.Destination) == destination })
}

// processLimits is what this process may give. Root of a user namespace may raise no limit.
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
	o.Raises = strings.HasSuffix(ids, "4294967295") && parseEffectiveCaps(status)&(1<<unix.CAP_SYS_RESOURCE) != 0
	return o, err
}

// parseEffectiveCaps reads the capabilities in a /proc/PID/status; 0 if it doesn't say.
func parseEffectiveCaps(status string) uint64 {
	for line := range strings.Lines(status) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			if err == nil {
				return mask
			}
		}
	}
	return 0
}

// resourceEdits is what engines give too little of to containers with GPUs, and what the admin
// has for NCCL: policy decides on each.
func (n *Node) resourceEdits() (edits.Edits, error) {
	p := n.config.Policy
	var e edits.Edits
	if p.MemoryPolicy == nil || *p.MemoryPolicy {
		e.Calls = edits.MemoryPolicy()
	}
	if p.Shm != "engine" {
		e.Shm = or(p.Shm, "50%")
	}
	files, err := cdi.NCCLFiles(p.NCCLConf, p.NCCLTopology)
	if err != nil {
		return edits.Edits{}, fmt.Errorf("policy: %w", err)
	}
	return edits.Merge(e, files)
}
