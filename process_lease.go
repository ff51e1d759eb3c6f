package berth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/probe"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
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
	// Step is that of [ledger.Owner], see [Node.FindStep].
	Step string
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

// PlaceProcess moves a process into a new cgroup without a lease, and returns the path of the cgroup. It is below the process's own,
// so that it has its limits. In it, the user may make cgroups, as with [Node.CreateCommandCgroup]. A process that is in such a cgroup
// already, or in that of a lease, stays there. placed is false then. Cgroups that earlier calls have left beside the new one are
// removed. The error Is [hostprocess.ErrRefused] if the process can't be moved.
func (n *Node) PlaceProcess(ctx context.Context, p *hostprocess.Process) (group string, placed bool, err error) {
	m := n.newMover(false)
	leases, err := n.Leases()
	if err != nil {
		return "", false, err
	}
	if _, err := m.examineProcess(p, leases); err != nil {
		return "", false, err
	}
	own, err := n.cgroups.ProcessPath(m.host.Proc, p.PID)
	if err != nil {
		return "", false, err
	}
	if group, found := n.findDelegated(own, p.UID); found {
		return group, false, nil
	}
	if group, err = n.createPlace(ctx, own, p.PID, p.UID); err != nil {
		return "", false, err
	}
	stays := func([]ledger.Lease) error {
		now, err := n.cgroups.ProcessPath(m.host.Proc, p.PID)
		if err == nil && now != own {
			err = hostprocess.Refuse("process %d has left cgroup %s", p.PID, own)
		}
		return err
	}
	if _, err = m.moveProcess(ctx, p, CommandProcesses(group), m.readLeases, stays); err != nil {
		return "", false, errors.Join(err, n.RemoveCommandCgroup(context.WithoutCancel(ctx), group))
	}
	return group, true, nil
}

// JoinPlace moves a process into the cgroup of a lease of its user, or one of PlaceProcess. The error Is [hostprocess.ErrRefused] if
// there is none at that path, if it is in a lease of another user that the process doesn't belong to, or in another slice of systemd, or if
// the process belongs to another lease.
func (n *Node) JoinPlace(ctx context.Context, p *hostprocess.Process, group string) error {
	if _, err := n.cgroups.Dir(group); err != nil { // a path that isn't absolute
		return err
	}
	m := n.newMover(false)
	// Under the ledger's lock: no lease ends between the check and the move.
	_, err := m.moveProcess(ctx, p, CommandProcesses(group), n.ledger.WithLeases, func(leases []ledger.Lease) error {
		return m.checkJoin(p, group, leases)
	})
	return err
}

// checkJoin refuses that a process joins the cgroup of a command.
func (m *mover) checkJoin(p *hostprocess.Process, group string, leases []ledger.Lease) error {
	found, ok := m.node.findDelegated(CommandTasks(group), p.UID)
	if !ok || found != group || m.node.readCgroupOwner(group) != 0 { // the user can make others
		return hostprocess.Refuse("%q is not the cgroup of a command of user %d", group, p.UID)
	}
	own, err := m.host.Tree.ProcessPath(m.host.Proc, p.PID)
	if err != nil {
		return err
	}
	around := FindInnermost(leases, group)
	switch {
	case around.ID != "" && !IsCommandOf(around.Owner, p.UID) && !cgroup.IsWithin(own, around.Owner.Cgroup):
		return hostprocess.Refuse("%q is in the lease of another user", group)
	case around.ID == "" && cgroup.IsWithin(group, commandParent):
		return hostprocess.Refuse("the lease of %q has ended", group)
	case around.ID == "" && m.findSlice(own) != m.findSlice(group):
		return hostprocess.Refuse("%q is in another slice than process %d, with other limits", group, p.PID)
	}
	return nil
}

// FindInnermost returns the innermost lease whose cgroup a cgroup is in, the zero lease if there is none.
func FindInnermost(leases []ledger.Lease, group string) (around ledger.Lease) {
	for _, l := range leases {
		if l.Owner.Cgroup != "" && cgroup.IsWithin(group, l.Owner.Cgroup) && len(l.Owner.Cgroup) > len(around.Owner.Cgroup) {
			around = l
		}
	}
	return around
}

// findSlice returns the innermost systemd slice owned by root that contains a cgroup, "/" if there is none. A user's limits are those of
// such slices (user-1000.slice).
func (m *mover) findSlice(group string) string {
	for group = path.Clean("/" + group); group != "/"; group = path.Dir(group) {
		if strings.HasSuffix(group, ".slice") && m.node.readCgroupOwner(group) == 0 {
			break
		}
	}
	return group
}

// readCgroupOwner returns the user that a cgroup belongs to, -1 if there is no such cgroup.
func (n *Node) readCgroupOwner(group string) int {
	var st unix.Stat_t
	dir, err := n.cgroups.Dir(group)
	if err != nil || unix.Stat(dir, &st) != nil {
		return -1
	}
	return int(st.Uid)
}

// FindPlace returns the cgroup of a lease, or of PlaceProcess, that the cgroup of a task of this process's user is in.
func (n *Node) FindPlace(task string) (group string, found bool) {
	return n.findDelegated(task, os.Geteuid())
}

// findDelegated returns the innermost cgroup of a command around an absolute path whose part for tasks belongs to a user.
func (n *Node) findDelegated(at string, uid int) (group string, found bool) {
	for group = path.Clean("/" + at); group != "/"; group = path.Dir(group) {
		if _, _, _, ok := parseCommandCgroup(group); !ok || !cgroup.IsWithin(at, CommandTasks(group)) {
			continue
		}
		if n.readCgroupOwner(CommandTasks(group)) == uid {
			return group, true
		}
	}
	return "", false
}

// createPlace creates a cgroup below another for a process, and removes empty ones there.
func (n *Node) createPlace(ctx context.Context, parent string, pid, uid int) (group string, err error) {
	dir, err := n.cgroups.Dir(parent)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); err != nil { // otherwise it would be created
		return "", fmt.Errorf("find the cgroup of process %d: %w", pid, err)
	}
	left, err := listCommandChildren(n.cgroups, parent)
	if err != nil {
		return "", err
	}
	_ = n.removeEmptyCgroups(ctx, left) // the next call tries again
	if group, err = n.nameCommandCgroup(parent, pid); err != nil {
		return "", err
	}
	if err := n.createCommandCgroup(group, uid); err != nil {
		return "", err
	}
	n.cgroups.HandOnControllers(group)
	return group, nil
}

// PlaceSelf is PlaceProcess for this process if the cgroup that it is in belongs to its user, as below the user's instance of
// systemd. Otherwise placed is false, and nothing has happened.
func (n *Node) PlaceSelf(ctx context.Context) (group string, placed bool, err error) {
	own, err := n.cgroups.ProcessPath(n.config.GPUHost().ProcPath(), os.Getpid())
	if err != nil {
		return "", false, err
	}
	dir, err := n.cgroups.Dir(own)
	if err != nil || unix.Access(path.Join(dir, "cgroup.procs"), unix.W_OK) != nil || unix.Access(dir, unix.W_OK) != nil {
		return "", false, err
	}
	if group, err = n.createPlace(ctx, own, os.Getpid(), 0); err != nil {
		return "", false, err
	}
	if err := n.cgroups.Join(CommandProcesses(group), 0); err != nil {
		return "", false, errors.Join(err, n.RemoveCommandCgroup(context.WithoutCancel(ctx), group))
	}
	return group, true, nil
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
	delegateTo := p.Process.UID
	if delegateTo == hostprocess.AnyUser { // root's adopt: the processes may be of several users
		delegateTo = 0
	}
	group, err := n.CreateCommandCgroup(outer, p.Process.PID, delegateTo)
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
			EntryPoint: CommandEntryPoint, Name: p.Name, Command: p.Command, Cgroup: group, Step: p.Step,
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
	populated := false
	err := n.withMoveLock(ctx, func() (err error) {
		if populated, err = n.cgroups.Populated(l.Owner.Cgroup); populated || err != nil {
			return err
		}
		return n.ledger.ReleaseEmpty(ctx, l.ID)
	})
	if populated || errors.Is(err, ledger.ErrLive) {
		return nil
	}
	return errors.Join(err, n.RemoveCommandCgroup(ctx, l.Owner.Cgroup))
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
