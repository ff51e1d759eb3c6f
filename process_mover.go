package berth

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"github.com/berth-gpu/berth/guard"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/hostprocess"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// mover moves processes of the host into the cgroups of leases, one at a time: between the check that a process may leave
// its cgroup and the move, no other mover on this host moves it into another lease.
type mover struct {
	node *Node
	host hostprocess.Host
	// containers is nil if the processes ask themselves.
	containers func() (guard.Containers, error)
}

func (c Config) moveLockPath() string { return filepath.Join(c.State, "move.lock") }

// moveTimeout bounds the wait for another mover, which needs milliseconds.
const moveTimeout = 10 * time.Second

// newMover returns a mover of processes that ask themselves, or of adopted ones.
func (n *Node) newMover(adopted bool) *mover {
	m := &mover{node: n, host: n.ProcessHost()}
	if adopted {
		m.containers = sync.OnceValues(n.guard.ListContainers)
	}
	return m
}

// examineProcess returns the cgroup of the innermost of the leases that a process belongs to, "" if it belongs to none. It refuses
// processes that must not be moved.
func (m *mover) examineProcess(p *hostprocess.Process, leases []ledger.Lease) (outer string, err error) {
	group, err := m.host.Examine(p)
	if err != nil {
		return "", err
	}
	for _, l := range leases {
		if l.Owner.Cgroup == "" || !cgroup.IsWithin(group, l.Owner.Cgroup) {
			continue
		}
		if !IsCommandCgroup(l.Owner.Cgroup) {
			return "", hostprocess.Refuse("process %d belongs to a container with a lease: leases are for processes of the host", p.PID)
		}
		if len(l.Owner.Cgroup) > len(outer) {
			outer = l.Owner.Cgroup
		}
	}
	if m.containers == nil {
		return outer, nil
	}
	containers, err := m.containers()
	if err != nil {
		return "", err
	}
	if found, _ := containers.Find(group); found {
		return "", hostprocess.Refuse("process %d belongs to a container: leases are for processes of the host", p.PID)
	}
	return outer, nil
}

// checkMove refuses the move of a process into a cgroup if the process belongs to a lease, and the cgroup isn't below that
// lease's: outside it could keep the lease's devices open after the lease has ended.
func (m *mover) checkMove(p *hostprocess.Process, into string, leases []ledger.Lease) error {
	outer, err := m.examineProcess(p, leases)
	if err == nil && outer != "" && !cgroup.IsWithin(into, outer) {
		err = hostprocess.Refuse("process %d belongs to another lease", p.PID)
	}
	return err
}

// readLeases calls f with the leases of this moment.
func (m *mover) readLeases(_ context.Context, f func([]ledger.Lease) error) error {
	leases, err := m.node.Leases()
	if err != nil {
		return err
	}
	return f(leases)
}

// withMoveLock calls f while no other mover moves a process.
func (n *Node) withMoveLock(ctx context.Context, f func() error) error {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveTimeout)
	defer cancel()
	l, err := lock.Create(limited, n.config.moveLockPath(), 0o600, lock.Exclusive)
	if err != nil {
		return err
	}
	return errors.Join(f(), l.Close())
}

// moveProcess moves a process unless check returns an error. It returns false if the process is there already. withLeases calls a function
// with the leases: [mover.readLeases], or [ledger.Ledger.WithLeases] if none of them may end meanwhile.
func (m *mover) moveProcess(ctx context.Context, p *hostprocess.Process, into string, withLeases func(context.Context, func([]ledger.Lease) error) error, check func([]ledger.Lease) error) (moved bool, err error) {
	move := func(leases []ledger.Lease) error {
		if err := check(leases); err != nil {
			return err
		}
		if err := m.checkMove(p, into, leases); err != nil {
			return err
		}
		own, err := m.host.Tree.ProcessPath(m.host.Proc, p.PID)
		if err != nil || cgroup.IsWithin(own, into) {
			return err
		}
		moved = true
		return m.host.Move(p, into)
	}
	err = m.node.withMoveLock(ctx, func() error { return withLeases(ctx, move) })
	return moved, err
}

// moveHolder moves the holder of a lease into the lease's cgroup. It refuses a process for which another call has taken a
// lease before.
func (m *mover) moveHolder(ctx context.Context, p ProcessLease, lease ledger.Lease) (moved hostprocess.Moved, err error) {
	into := CommandProcesses(lease.Owner.Cgroup)
	isFirst := func(leases []ledger.Lease) error {
		switch first := findLeaseOf(leases, p.Process); first.ID {
		case lease.ID:
			return nil
		case "":
			return hostprocess.Refuse("the lease of process %d has ended meanwhile: ask again", p.Process.PID)
		default:
			return hostprocess.Refuse("process %d has lease %s (%s) already", p.Process.PID, first.ID, first.Request)
		}
	}
	if !p.Tree {
		_, err := m.moveProcess(ctx, p.Process, into, m.readLeases, isFirst)
		return moved, err
	}
	return m.host.MoveTree(ctx, p.Process, into, p.Skip, func(each *hostprocess.Process) (bool, error) {
		if each == p.Process {
			return m.moveProcess(ctx, each, into, m.readLeases, isFirst)
		}
		return m.moveProcess(ctx, each, into, m.node.ledger.WithLeases, isFirst)
	})
}

// canAdopt reports whether a process is root or a descendant, and would be moved with it into the cgroup.
func (m *mover) canAdopt(pid int, root *hostprocess.Process, into string) bool {
	if !hostprocess.IsDescendant(m.host.Proc, pid, root.PID) {
		return false
	}
	p, err := hostprocess.Open(pid, root.UID)
	if err != nil {
		return false
	}
	defer p.Close()
	leases, err := m.node.Leases()
	return err == nil && m.checkMove(p, into, leases) == nil
}
