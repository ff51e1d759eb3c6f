package berth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/probe"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/hostprocess"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// This file takes leases for processes of the host that run already: the process that asks the broker, and a process that is
// adopted with its descendants (berth adopt). The lease's cgroup is that of a command, see commands.go.

// CommandEntryPoint is the entry point of the leases of commands of the host.
const CommandEntryPoint = "alloc"

// ProcessLease is a request for a lease whose holder is a running process.
type ProcessLease struct {
	Process *hostprocess.Process
	// Tree: the process's descendants belong to the holder too, except for the process Skip and for those that are refused as
	// Process would be.
	Tree bool
	Skip int
	// Name and Command are shown to people.
	Name, Command string
	Request       request.Request
	// Wait, Waiter and Waiting are those of [ledger.Ask].
	Wait    time.Duration
	Waiter  ledger.Process
	Waiting func(ledger.BusyError)
}

// FindUserName returns the name of a user, or the number of one without a name. Names are remembered for some minutes.
func (n *Node) FindUserName(uid int) string { return n.users.Find(uid) }

// ProcessHost returns where processes of the host are examined and moved.
func (n *Node) ProcessHost() hostprocess.Host {
	return hostprocess.Host{Proc: n.config.GPUHost().ProcPath(), Tree: n.cgroups}
}

// LeaseProcess takes a lease for a running process, and moves the process into the lease's cgroup. It is idempotent: for the
// same process and request it returns the same lease, and moves what isn't in the cgroup yet, so that a call that was killed
// can be repeated. The lease's user is p.Process.UID; with [hostprocess.AnyUser], the process's real user. If the process belongs
// to a lease already, the new cgroup is below that of the lease, and a process that joins another lease meanwhile is refused: so no
// process leaves a lease whose devices it may have open.
//
// The errors are those of [Node.Acquire], [ErrTooDeep], and [hostprocess.ErrRefused] if the process can't have the lease.
func (n *Node) LeaseProcess(ctx context.Context, p ProcessLease) (lease ledger.Lease, moved hostprocess.Moved, err error) {
	if process.IsKernelThread(n.ProcessHost().Proc, p.Process.PID) {
		return lease, moved, hostprocess.Refuse("process %d is a thread of the kernel", p.Process.PID)
	}
	m := n.newMover(p.Tree)
	leases, err := n.Leases()
	if err != nil {
		return lease, moved, err
	}
	outer, err := m.examineProcess(p.Process, leases)
	if err != nil {
		return lease, moved, err
	}
	lease = findLeaseOf(leases, p.Process)
	for _, l := range leases { // two calls at once have taken one each, and were killed
		if l.ID != lease.ID && l.Owner.Process == p.Process.Process && IsCommandOf(l.Owner, p.Process.UID) {
			if err := n.WithdrawLease(context.WithoutCancel(ctx), l); err != nil {
				return lease, moved, err
			}
		}
	}
	switch {
	case lease.ID != "" && lease.Request != p.Request.String():
		return lease, moved, hostprocess.Refuse("process %d has lease %s (%s) already; a child of it can take another", p.Process.PID, lease.ID, lease.Request)
	case lease.ID != "": // an earlier call was killed
		err = n.SyncDeviceGuard(ctx)
	default:
		waiting, stop := n.cancelAtEnd(ctx, p.Process)
		lease, err = n.acquireForProcess(waiting, p, m, outer)
		if cause := context.Cause(waiting); err != nil && errors.Is(cause, hostprocess.ErrRefused) {
			err = cause
		}
		stop()
	}
	if err != nil {
		return lease, moved, err
	}
	if err = context.Cause(ctx); err == nil {
		moved, err = m.moveHolder(ctx, p, lease)
	}
	if err != nil {
		return lease, moved, errors.Join(err, n.WithdrawLease(context.WithoutCancel(ctx), lease))
	}
	if err := n.NoteLease(lease); err != nil && n.config.Log != nil { // without it a lost ledger isn't rebuilt before the process has ended
		n.config.Log.Warn("note lease", "lease", lease.ID, "error", err)
	}
	return lease, moved, nil
}

// findLeaseOf returns the first lease that was taken for a process, the zero lease if there is none.
func findLeaseOf(leases []ledger.Lease, p *hostprocess.Process) (own ledger.Lease) {
	for _, l := range leases {
		if l.Owner.Process == p.Process && IsCommandOf(l.Owner, p.UID) {
			return l
		}
	}
	return own
}

// cancelAtEnd returns a context that is cancelled soon after a process has ended, so that no request waits for it.
func (n *Node) cancelAtEnd(ctx context.Context, p *hostprocess.Process) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	proc := n.config.GPUHost().ProcPath()
	go func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(endPollInterval):
				if !process.Lives(proc, p.PID, p.Start) {
					cancel(hostprocess.Refuse("process %d has ended", p.PID))
				}
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

const endPollInterval = 500 * time.Millisecond

// IsCommandOf reports whether a holder is a command of a user's, who may end it by the broker. The uid of a container's lease is
// not that of a person.
func IsCommandOf(o ledger.Owner, uid int) bool {
	return (o.UID == uid || uid == hostprocess.AnyUser) && o.EntryPoint == CommandEntryPoint && IsCommandCgroup(o.Cgroup)
}

// acquireForProcess takes a new lease, and creates its cgroup. After an error neither is left.
func (n *Node) acquireForProcess(ctx context.Context, p ProcessLease, m *mover, outer string) (lease ledger.Lease, err error) {
	uid := p.Process.UID
	if uid == hostprocess.AnyUser {
		if uid, err = n.ProcessHost().User(p.Process); err != nil {
			return lease, err
		}
	}
	group, err := n.CreateCommandCgroup(outer, p.Process.PID)
	if errors.Is(err, ErrTooDeep) {
		return lease, fmt.Errorf("process %d gets no lease: %w", p.Process.PID, err)
	}
	if err != nil {
		return lease, err
	}
	var adopts func(pid int) bool
	if p.Tree {
		adopts = func(pid int) bool { return m.canAdopt(pid, p.Process, group) }
	}
	lease, err = n.acquire(ctx, ledger.Ask{
		Owner: ledger.Owner{
			EntryPoint: CommandEntryPoint, Name: p.Name, Command: p.Command, Cgroup: group,
			UID: uid, User: n.users.Find(uid), Process: p.Process.Process,
		},
		Request: p.Request, Wait: p.Wait, Waiter: p.Waiter, Waiting: p.Waiting,
	}, adopts)
	if err != nil {
		return lease, errors.Join(err, n.RemoveCommandCgroup(context.WithoutCancel(ctx), group))
	}
	if !p.Tree {
		return lease, nil
	}
	inv, err := n.readInventory(ctx)
	if err == nil {
		if other := n.findOtherDevice(inv, lease, adopts); other != "" {
			err = hostprocess.Refuse("process %d uses GPU %s, which isn't among those of request %s", p.Process.PID, other, lease.Request)
		}
	}
	if err != nil {
		return lease, errors.Join(err, n.WithdrawLease(context.WithoutCancel(ctx), lease))
	}
	return lease, nil
}

// findOtherDevice returns the index of a device that adopted processes use and the lease doesn't have, "" if there is none.
func (n *Node) findOtherDevice(inv gpu.Inventory, lease ledger.Lease, adopts func(pid int) bool) (index string) {
	found := n.UnleasedProcesses()
	for _, d := range inv.Devices() {
		uses := slices.ContainsFunc(found[d.UUID], func(p gpu.Process) bool { return !p.Unsearched && adopts(p.PID) })
		if uses && !slices.ContainsFunc(lease.Devices, d.Conflicts) {
			return d.Index
		}
	}
	return ""
}

// WithdrawLease ends the lease of a process that doesn't get it, unless processes are in its cgroup.
func (n *Node) WithdrawLease(ctx context.Context, l ledger.Lease) error {
	return n.withMoveLock(ctx, func() error {
		populated, err := n.cgroups.Populated(l.Owner.Cgroup)
		if err != nil || populated {
			return err
		}
		return errors.Join(n.Release(ctx, l.ID), n.RemoveCommandCgroup(ctx, l.Owner.Cgroup))
	})
}

// FindUsed returns the devices that a process and its descendants use, as NVML reports it, in the order of the inventory.
func (n *Node) FindUsed(inv gpu.Inventory, uses []probe.Use, pid int) (used []gpu.Device) {
	proc := n.config.GPUHost().ProcPath()
	for _, d := range inv.Devices() {
		for _, u := range uses {
			if u.UUID == d.UUID && slices.ContainsFunc(u.Processes, func(p probe.Process) bool { return hostprocess.IsDescendant(proc, p.PID, pid) }) {
				used = append(used, d)
			}
		}
	}
	return used
}
