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
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/runtimestate"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// NoteRuntimeRoot remembers a state directory of a runtime, an absolute path. Without it a container of that directory
// isn't found again if the ledger is lost. An error, such as a full disk, is ignored: it keeps no container from its start.
func (n *Node) NoteRuntimeRoot(root string) { _ = runtimestate.Note(n.config.runtimeRootsPath(), root) }

// Acquire leases all devices of the request, or none. It sets ask.Inventory, ask.Renew and ask.Stale.
// A request that policy doesn't allow is an error that Is [ErrForbidden].
func (n *Node) Acquire(ctx context.Context, ask ledger.Ask) (ledger.Lease, error) {
	return n.acquire(ctx, ask, nil)
}

// acquire is Acquire for a holder that uses devices already: the processes for which adopts is true don't keep a device
// from being leased.
func (n *Node) acquire(ctx context.Context, ask ledger.Ask, adopts func(pid int) bool) (ledger.Lease, error) {
	if err := n.config.Policy.checkRequest(ask.Request); err != nil {
		return ledger.Lease{}, err
	}
	if ask.Owner.UID == 0 {
		o := &ask.Owner
		if o.Login, o.LoginFrom = process.FindLogin(n.config.GPUHost().ProcPath(), n.config.SudoUID); o.Login != 0 {
			o.LoginUser = n.users.Find(o.Login)
		}
	}
	// By its runtime's state directory a container is found again when the ledger is lost.
	if root := ask.Owner.RuntimeRoot; root != "" && ask.Owner.EntryPoint != "run" {
		n.NoteRuntimeRoot(root)
	}
	// Each attempt of a waiting request checks the ledger too: an attempt without a ledger creates an empty one.
	var processes fileVersion
	look := func(ctx context.Context) (gpu.Inventory, error) {
		inv, version, err := n.inventoryFor(ctx, ask.Request)
		processes = version
		if adopts != nil {
			inv.Occupied = removeAdopted(inv.Occupied, adopts)
		}
		if err == nil {
			err = n.CheckLedger()
		}
		return inv, err
	}
	ask.Renew = func(ctx context.Context) (gpu.Inventory, error) {
		inv, err := look(ctx)
		inv.GPUs = sysfs.MarkLost(n.config.GPUHost(), inv.GPUs)
		return inv, err
	}
	ask.Stale = func() bool { return versionOf(n.config.processesPath()) != processes }
	// A check of the PCI bus takes several system calls for each GPU of the node. An attempt
	// that doesn't wait checks afterwards: the GPUs of its lease, or all if it was refused.
	first := look
	if ask.Wait != 0 {
		first = ask.Renew
	}
	inv, err := first(ctx)
	if err != nil {
		return ledger.Lease{}, err
	}
	ask.Inventory = inv
	lease, err := n.ledger.Acquire(ctx, ask)
	if ask.Wait == 0 && n.hasLost(inv, lease) { // match again, without the lost GPUs
		if err == nil {
			if err := n.Release(ctx, lease.ID); err != nil {
				return ledger.Lease{}, err
			}
		}
		if ask.Inventory, err = ask.Renew(ctx); err != nil {
			return ledger.Lease{}, err
		}
		lease, err = n.ledger.Acquire(ctx, ask)
	}
	if errors.Is(err, ledger.ErrBusy) && ctx.Err() == nil {
		// A container that can't be ended keeps its lease, and the request stays refused.
		if ended, _ := n.EvictUnstarted(ctx); len(ended) > 0 {
			ask.Wait = 0 // the time to wait is over
			if ask.Inventory, err = ask.Renew(ctx); err != nil {
				return ledger.Lease{}, err
			}
			return n.ledger.Acquire(ctx, ask)
		}
	}
	return lease, err
}

// hasLost reports whether a GPU of the lease has fallen off the PCI bus since the inventory was read. With the zero
// lease, that of a refused attempt, it checks all GPUs of the inventory.
func (n *Node) hasLost(inv gpu.Inventory, lease ledger.Lease) bool {
	return slices.ContainsFunc(inv.GPUs, func(g gpu.GPU) bool {
		concerned := lease.ID == "" || slices.ContainsFunc(lease.Devices, g.Device().Conflicts)
		return concerned && g.Lost == "" && sysfs.OffBus(n.config.GPUHost(), g) != ""
	})
}

// CheckGrantable returns an error if this node can't grant the request even when all
// devices are free: policy forbids it, or the node lacks the devices.
func (n *Node) CheckGrantable(ctx context.Context, r request.Request) error {
	_, err := n.CountGrantable(ctx, r)
	return err
}

// CountGrantable returns how many leases of the request this node can grant at once when all devices are free, at least 1.
// The error is that of CheckGrantable.
func (n *Node) CountGrantable(ctx context.Context, r request.Request) (int, error) {
	if err := n.config.Policy.checkRequest(r); err != nil {
		return 0, err
	}
	inv, _, err := n.inventoryFor(ctx, r)
	if err != nil {
		return 0, err
	}
	inv.GPUs = sysfs.MarkLost(n.config.GPUHost(), inv.GPUs)
	fit, err := match.Candidates(inv, r)
	if err != nil || r.Count() == 0 {
		return 1, err
	}
	return max(len(fit)/r.Count(), 1), nil
}

// inventoryFor returns the inventory for a request, without a check of the PCI bus, and the version of the list of unleased
// processes that it was made with. It reads the present state of the NICs' links, which can be down for a while after boot.
func (n *Node) inventoryFor(ctx context.Context, r request.Request) (inv gpu.Inventory, processes fileVersion, err error) {
	processes = versionOf(n.config.processesPath())
	if r.CDI() != nil {
		inv, err = n.inventoryWithCDI(ctx, r)
	} else {
		inv, err = n.readInventory(ctx)
	}
	if err == nil && r.GPUs() && (n.config.Policy.InUse == "" || n.config.Policy.InUse == "refuse") {
		inv.Occupied, processes, err = n.listOccupied(ctx, inv)
	}
	if err == nil && r.NICs() != "" {
		inv.NICs, err = sysfs.ReadPortStates(n.config.GPUHost(), inv.NICs)
	}
	return inv, processes, err
}

// FindOwnLease returns a lease if this process runs in its holder's cgroup. Knowing the id
// isn't enough to use a lease.
func (n *Node) FindOwnLease(id string) (ledger.Lease, error) {
	l, ok, err := n.ledger.Get(id)
	if err != nil {
		return ledger.Lease{}, err
	}
	if !ok {
		return ledger.Lease{}, fmt.Errorf("use lease %q: %w", id, ledger.ErrNotFound)
	}
	pid, err := process.Own(n.config.GPUHost().ProcPath())
	if err != nil {
		return ledger.Lease{}, fmt.Errorf("use lease %s: %w", id, err)
	}
	own, err := n.cgroups.ProcessPath(n.config.GPUHost().ProcPath(), pid)
	if err != nil {
		return ledger.Lease{}, fmt.Errorf("use lease %s: %w", id, err)
	}
	if l.Owner.Cgroup == "" || !cgroup.IsWithin(own, l.Owner.Cgroup) {
		return ledger.Lease{}, fmt.Errorf("use lease %s: this process is not part of its holder (%s)", id, l.Owner.EntryPoint)
	}
	return l, nil
}

// FindParent returns the first ancestor of this process that isn't part of the lease's holder, which this process is. It returns 0 if
// that is process 1, hidden, or outside of this pid namespace.
func (n *Node) FindParent(l ledger.Lease) (pid int) {
	proc := n.config.GPUHost().ProcPath()
	for pid = os.Getppid(); pid > 1; {
		group, err := n.cgroups.ProcessPath(proc, pid)
		if err == nil && !cgroup.IsWithin(group, l.Owner.Cgroup) {
			return pid
		}
		if pid, err = process.Parent(proc, pid); err != nil {
			return 0
		}
	}
	return 0
}

// View returns all leases with the states of their holders, and the queue. It writes
// nothing and takes no lock. The error Is [ErrLedgerLost] if the leases of running holders aren't known.
func (n *Node) View() (ledger.View, error) {
	if err := n.CheckLedger(); err != nil {
		return ledger.View{}, err
	}
	v, err := n.ledger.View()
	if err != nil {
		return ledger.View{}, err
	}
	if s, err := snapshot.Load(n.config.SnapshotPath(), n.config.GPUHost()); err == nil {
		s.Inventory.GPUs = sysfs.MarkLost(n.config.GPUHost(), s.Inventory.GPUs)
		v = v.Annotate(s.Inventory)
	}
	for i := range v.Leases {
		s := &v.Leases[i]
		switch s.Created = n.isCreated(*s); {
		case s.Created:
			s.Phase = ledger.Created
		case waitsForStart(*s):
			s.Phase = ledger.Starting
		}
	}
	return v, nil
}

// Leases returns all leases, also those of dead holders.
func (n *Node) Leases() ([]ledger.Lease, error) { return n.ledger.ReadLeases() }

// CPUs returns the CPUs near the devices of a lease in the kernel's list format, "" if they
// are unknown.
func (n *Node) CPUs(ctx context.Context, l ledger.Lease) (string, error) {
	if gpus, _, _ := splitDevices(l.Devices); len(gpus) == 0 {
		return "", nil
	}
	inv, err := n.readInventory(ctx)
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

// Release releases a lease, whether its holder lives or not. It is idempotent.
func (n *Node) Release(ctx context.Context, id string) error { return n.ledger.Release(ctx, id) }

// ReleaseIfDead releases a lease unless its holder lives: then the error Is
// ledger.ErrLive. It waits a moment for a holder that was just killed.
func (n *Node) ReleaseIfDead(ctx context.Context, id string) error {
	return n.ledger.ReleaseIfDead(ctx, id)
}

// Reap releases the leases of dead holders, as Acquire does.
func (n *Node) Reap(ctx context.Context) error { return n.ledger.Reap(ctx) }

// Evict ends the holder's processes and then its lease: see [guard.Guard.Evict].
func (n *Node) Evict(ctx context.Context, l ledger.Lease) error { return n.guard.Evict(ctx, l) }
