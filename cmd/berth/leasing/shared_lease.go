package leasing

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// sharedLease implements launcher.Devices by the lease of the berth alloc around this process.
// The lease is neither taken nor released here; a request chooses among its devices and
// features.
type sharedLease struct {
	ownLease
	outer ledger.Lease
}

func (s sharedLease) Acquire(ctx context.Context, owner ledger.Owner, r request.Request, _ func()) (ledger.Lease, error) {
	inv, err := s.node.Inventory(ctx)
	if err != nil {
		return ledger.Lease{}, err
	}
	lease := s.outer
	lease.Owner.Runtime = owner.Runtime // the runtime of the container that is prepared
	held, err := request.Parse(s.outer.Request)
	if err != nil {
		return ledger.Lease{}, fmt.Errorf("the lease's %w", err)
	}
	if f, missing := featureBeyond(held.Features(), r.Features()); missing {
		return ledger.Lease{}, fmt.Errorf("request %s: the lease %s around this process is without feature %s", r, s.outer.ID, f)
	}
	for _, name := range r.CDI() {
		i := slices.IndexFunc(s.outer.Devices, func(d gpu.Device) bool { return d.UUID == name })
		if i < 0 {
			return ledger.Lease{}, fmt.Errorf("request %s: the lease %s around this process is without %s", r, s.outer.ID, name)
		}
		inv.CDI = append(inv.CDI, s.outer.Devices[i])
	}
	if r.IsAll() {
		return lease, nil
	}
	lease.Request = r.String()
	inv.NICs = leasedNICs(inv.NICs, s.outer.Devices)
	others := slices.DeleteFunc(inv.Devices(), func(d gpu.Device) bool {
		return slices.ContainsFunc(s.outer.Devices, d.Conflicts)
	})
	lease.Devices, err = match.Choose(inv, r, others)
	if errors.Is(err, match.ErrBusy) { // waiting wouldn't help: the lease doesn't get more devices
		return ledger.Lease{}, fmt.Errorf("request %s: the lease %s around this process has only GPU %s", r, s.outer.ID, output.JoinIndexes(s.outer.Devices))
	}
	return lease, verb.NameRequest(err)
}

func (s sharedLease) Release(context.Context, ledger.Lease) error { return nil }

// leasedNICs returns the node's NICs that are among the devices.
func leasedNICs(nics []gpu.NIC, devices []gpu.Device) []gpu.NIC {
	return slices.DeleteFunc(slices.Clone(nics), func(n gpu.NIC) bool {
		return !slices.ContainsFunc(devices, func(d gpu.Device) bool { return d.UUID == n.Device(false).UUID })
	})
}

// maxMinors exceeds the number of device nodes of every feature.
const maxMinors = 4096

// featureBeyond returns a wanted feature that isn't covered by the held ones, as imex=0-3 isn't
// covered by imex=1-2.
func featureBeyond(held, wanted []gpu.Feature) (f gpu.Feature, found bool) {
	for _, f := range wanted {
		for minor := range maxMinors {
			node := gpu.FeatureNode{Feature: f.Name(), Minor: minor}
			if f.Includes(node) && !slices.ContainsFunc(held, func(h gpu.Feature) bool { return h.Includes(node) }) {
				return f, true
			}
		}
	}
	return "", false
}
