package berth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/gpu/sysfs"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Acquire leases every device that is asked for, or none. ask.Inventory and ask.Renew
// are filled in. What policy doesn't allow is an error that Is [ErrForbidden].
func (n *Node) Acquire(ctx context.Context, ask ledger.Ask) (ledger.Lease, error) {
	if err := n.config.Policy.checkRequest(ask.Request); err != nil {
		return ledger.Lease{}, err
	}
	// The ledger is checked while the request waits, too: an attempt without a ledger begins an empty one.
	ask.Renew = func(ctx context.Context) (gpu.Inventory, error) {
		inv, err := n.inventoryFor(ctx, ask.Request)
		if err == nil {
			err = n.CheckLedger()
		}
		return inv, err
	}
	inv, err := ask.Renew(ctx)
	if err != nil {
		return ledger.Lease{}, err
	}
	ask.Inventory = inv
	lease, err := n.ledger.Acquire(ctx, ask)
	if errors.Is(err, ledger.ErrBusy) && ctx.Err() == nil {
		// What can't be ended stays: the request is refused then.
		if ended, _ := n.EvictUnstarted(ctx); len(ended) > 0 {
			ask.Wait = 0 // which is over
			if ask.Inventory, err = ask.Renew(ctx); err != nil {
				return ledger.Lease{}, err
			}
			return n.ledger.Acquire(ctx, ask)
		}
	}
	return lease, err
}

// Grantable says why a request can never be granted on this node, whoever holds what:
// policy, or what the node has. nil means that it is worth asking.
func (n *Node) Grantable(ctx context.Context, r request.Request) error {
	if err := n.config.Policy.checkRequest(r); err != nil {
		return err
	}
	inv, err := n.inventoryFor(ctx, r)
	if err != nil {
		return err
	}
	_, err = match.Candidates(inv, r)
	return err
}

// inventoryFor is the inventory in which the request can be matched. Of NICs it says
// which work now: their links can be down for a while after boot.
func (n *Node) inventoryFor(ctx context.Context, r request.Request) (gpu.Inventory, error) {
	look := n.Inventory
	if r.CDI() != nil {
		look = func(ctx context.Context) (gpu.Inventory, error) { return n.withCDI(ctx, r) }
	}
	inv, err := look(ctx)
	if err == nil && r.GPUs() && (n.config.Policy.InUse == "" || n.config.Policy.InUse == "refuse") {
		inv.Occupied = n.listOccupied(inv)
	}
	if err == nil && r.NICs() != "" {
		inv.NICs, err = sysfs.States(n.config.GPUHost(), inv.NICs)
	}
	return inv, err
}

// Held returns the lease of that id if this process runs inside its holder's
// cgroup: whoever only knows an id can't use the lease.
func (n *Node) Held(id string) (ledger.Lease, error) {
	l, ok, err := n.ledger.Get(id)
	if err != nil {
		return ledger.Lease{}, err
	}
	if !ok {
		return ledger.Lease{}, fmt.Errorf("use lease %q: %w", id, ledger.ErrNotFound)
	}
	own, err := n.cgroups.ProcessPath(n.config.GPUHost().ProcPath(), os.Getpid())
	if err != nil {
		return ledger.Lease{}, fmt.Errorf("use lease %s: %w", id, err)
	}
	if l.Owner.Cgroup == "" || !cgroup.IsWithin(own, l.Owner.Cgroup) {
		return ledger.Lease{}, fmt.Errorf("use lease %s: this process is not part of its holder (%s)", id, l.Owner.Door)
	}
	return l, nil
}

// View says who holds what, and who waits. It writes nothing and takes no lock.
func (n *Node) View() (ledger.View, error) {
	v, err := n.ledger.View()
	if err != nil {
		return ledger.View{}, err
	}
	if s, err := snapshot.Load(n.config.SnapshotPath(), n.config.GPUHost()); err == nil {
		s.Inventory.GPUs = sysfs.MarkLost(n.config.GPUHost(), s.Inventory.GPUs)
		v = v.Annotate(s.Inventory)
	}
	for i := range v.Leases {
		v.Leases[i].Created = waitsForStart(v.Leases[i])
	}
	return v, nil
}

// Leases lists all leases, those of holders that are gone too.
func (n *Node) Leases() ([]ledger.Lease, error) { return n.ledger.Held() }

// CPUs near the devices of a lease, in the kernel's list format; "" if unknown.
func (n *Node) CPUs(ctx context.Context, l ledger.Lease) (string, error) {
	if gpus, _, _ := splitDevices(l.Devices); len(gpus) == 0 {
		return "", nil
	}
	inv, err := n.Inventory(ctx)
	if err != nil {
		return "", err
	}
	var lists []string
	for _, d := range l.Devices {
		g, _, ok := inv.Lookup(d.UUID)
		if ok && g.CPUs != "" && !slices.Contains(lists, g.CPUs) {
			lists = append(lists, g.CPUs)
		}
	}
	return strings.Join(lists, ","), nil
}

// Release gives a lease back, whether its holder lives or not. Releasing one that
// is gone is no error.
func (n *Node) Release(ctx context.Context, id string) error { return n.ledger.Release(ctx, id) }

// ReleaseIfDead gives a lease back unless its holder lives: then it stays, and the
// error Is ledger.ErrLive. Who was just killed is waited for.
func (n *Node) ReleaseIfDead(ctx context.Context, id string) error {
	return n.ledger.ReleaseIfDead(ctx, id)
}

// Evict ends the holder's processes and then its lease: see [guard.Guard.Evict].
func (n *Node) Evict(ctx context.Context, l ledger.Lease) error { return n.guard.Evict(ctx, l) }
