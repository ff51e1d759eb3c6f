package server

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/username"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// entryPoint of the leases that the broker takes: those of berth alloc.
const entryPoint = "alloc"

// isOwn reports whether a holder is a command of the user's. The uid of a container's lease is not that
// of a person.
func isOwn(o ledger.Owner, uid int) bool {
	return o.UID == uid && o.EntryPoint == entryPoint && berth.IsCommandCgroup(o.Cgroup)
}

// acquire takes a lease for the caller, and moves it into the lease's cgroup.
func (s *Server) acquire(ctx context.Context, c *caller, a protocol.Acquire) (*protocol.Granted, error) {
	wanted, err := request.Parse(a.Request)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeMessage, "%v", err)
	}
	tree := s.node.Cgroups()
	if tree.Version != cgroup.V2 {
		return nil, protocol.Errorf(protocol.CodeFailed, "leases without root need cgroup version 2 alone, and this machine has version 1: a user with a cgroup there could leave that of the lease")
	}
	own, err := c.lookUp(s.proc, tree)
	if err != nil {
		return nil, err
	}
	done, err := s.beginAsking(c)
	if err != nil {
		return nil, err
	}
	defer done()
	has, outer, err := s.findLeases(c, own)
	switch {
	case err != nil:
		return nil, err
	case has.ID != "" && has.Request != wanted.String():
		return nil, protocol.Errorf(protocol.CodeCaller, "process %d has lease %s (%s) already; a child of it can take another", c.PID, has.ID, has.Request)
	case has.ID != "": // an earlier broker was killed before its reply
		if err := s.node.SyncDeviceGuard(ctx); err != nil {
			return nil, err
		}
		return s.enterLease(ctx, c, has)
	}
	if a.Wait() != 0 {
		leave, ok := s.enterOf(s.waiting, c.uid, maxWaiting)
		if !ok {
			return nil, protocol.Errorf(protocol.CodeLimit, "user %d has %d waiting requests, the most that are allowed", c.uid, maxWaiting)
		}
		defer leave()
	}
	group, err := s.node.CreateCommandCgroup(outer, c.PID)
	if errors.Is(err, berth.ErrTooDeep) {
		return nil, protocol.Errorf(protocol.CodeCaller, "process %d gets no lease: %v", c.PID, err)
	}
	if err != nil {
		return nil, err
	}
	lease, err := s.node.Acquire(ctx, ledger.Ask{
		Owner: ledger.Owner{
			EntryPoint: entryPoint, Name: a.Name, Command: a.Command, Cgroup: group,
			UID: c.uid, User: username.Find(c.uid), Process: c.Process,
		},
		Request: wanted, Wait: a.Wait(), Waiter: c.Process,
		Waiting: func(b ledger.BusyError) {
			busy := protocol.NewBusy(hideHolders(b, c.uid, s.show))
			if sendReply(c.conn, protocol.Reply{Waiting: &busy}) != nil {
				_ = c.conn.Close() // watchConnection notices; half a message may be sent
			}
		},
	})
	if err != nil {
		var busy *ledger.BusyError
		if errors.As(err, &busy) {
			hidden := hideHolders(*busy, c.uid, s.show)
			err = &hidden
		}
		return nil, errors.Join(err, s.node.RemoveCommandCgroup(context.WithoutCancel(ctx), group))
	}
	return s.enterLease(ctx, c, lease)
}

// beginAsking refuses a second request of a process at the same time: with two leases, the process would
// leave the cgroup of the first, and could keep its devices open.
func (s *Server) beginAsking(c *caller) (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asking[c.Process] {
		return nil, protocol.Errorf(protocol.CodeCaller, "process %d asks already, by another connection", c.PID)
	}
	s.asking[c.Process] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.asking, c.Process)
	}, nil
}

// findLeases returns the lease that the caller has taken, and the cgroup of the innermost lease that the
// caller's cgroup belongs to. A new lease's cgroup lies below that one: otherwise the caller could
// leave the outer lease, and keep its devices open when it ends.
func (s *Server) findLeases(c *caller, group string) (own ledger.Lease, outer string, err error) {
	all, err := s.node.Leases()
	if err != nil {
		return own, "", err
	}
	for _, l := range all {
		if l.Owner.Process == c.Process && isOwn(l.Owner, c.uid) {
			own = l
		}
		if l.Owner.Cgroup == "" || !cgroup.IsWithin(group, l.Owner.Cgroup) {
			continue
		}
		if !berth.IsCommandCgroup(l.Owner.Cgroup) {
			return own, "", protocol.Errorf(protocol.CodeCaller, "process %d belongs to a container with a lease: leases are for processes of the host", c.PID)
		}
		if len(l.Owner.Cgroup) > len(outer) {
			outer = l.Owner.Cgroup
		}
	}
	return own, outer, nil
}

// enterLease moves the caller into the cgroup of its new lease. If that fails, the lease ends.
func (s *Server) enterLease(ctx context.Context, c *caller, l ledger.Lease) (*protocol.Granted, error) {
	err := context.Cause(ctx)
	if err == nil {
		err = c.moveInto(s.proc, s.node.Cgroups(), berth.CommandProcesses(l.Owner.Cgroup))
	}
	if err != nil {
		return nil, errors.Join(err, s.withdrawLease(context.WithoutCancel(ctx), l))
	}
	if err := s.node.NoteLease(l); err != nil { // without it a lost ledger isn't rebuilt before the command has ended
		s.log.Warn("note lease", "lease", l.ID, "error", err)
	}
	granted := &protocol.Granted{Lease: l, Environment: berth.CommandEnvironment(l)}
	for _, o := range hideOccupied(s.node.FindOccupied(l.Devices), s.show) {
		granted.Remarks = append(granted.Remarks, o.String())
	}
	return granted, nil
}

// withdrawLease ends a lease that the caller doesn't get, unless processes are in its cgroup.
func (s *Server) withdrawLease(ctx context.Context, l ledger.Lease) error {
	populated, err := s.node.Cgroups().Populated(l.Owner.Cgroup)
	if err != nil || populated {
		return err
	}
	return errors.Join(s.node.Release(ctx, l.ID), s.node.RemoveCommandCgroup(ctx, l.Owner.Cgroup))
}

// releaseLease ends a lease of the user's.
func (s *Server) releaseLease(ctx context.Context, uid int, r protocol.Release) error {
	all, err := s.node.Leases()
	if err != nil {
		return err
	}
	for _, l := range all {
		switch {
		case l.ID != r.Lease:
			continue
		case !isOwn(l.Owner, uid):
			return protocol.Errorf(protocol.CodeForbidden, "lease %s is not one that user %d has taken with berth alloc: only root can end it", l.ID, uid)
		case r.Force:
			err = s.node.Evict(ctx, l)
		default:
			err = s.node.ReleaseIfDead(ctx, l.ID)
		}
		if err != nil {
			return err
		}
		return errors.Join(s.node.RemoveCommandCgroup(ctx, l.Owner.Cgroup), s.node.SweepCommandCgroups(ctx))
	}
	return fmt.Errorf("release lease %.20q: %w", strings.TrimSpace(r.Lease), ledger.ErrNotFound)
}
