package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/hostprocess"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// acquire takes a lease for the caller, and moves it into the lease's cgroup.
func (s *Server) acquire(ctx context.Context, c *caller, a protocol.Acquire) (*protocol.Granted, error) {
	wanted, err := parseRequest(a.Request)
	if err != nil {
		return nil, err
	}
	p, done, err := openAsker(s.node.ProcessHost(), c.Process, a.Descendant)
	if err != nil {
		return nil, err
	}
	defer done()
	return s.leaseProcess(ctx, c, berth.ProcessLease{
		Process: p, Name: a.Name, Command: a.Command, Request: wanted, Wait: a.Wait(),
		Step: s.node.FindStep(p.PID, c.PID),
	})
}

// openAsker returns the calling process, or the descendant of it that it asks for.
func openAsker(host hostprocess.Host, caller *hostprocess.Process, descendant int) (p *hostprocess.Process, done func(), err error) {
	if _, err := host.Examine(caller); err != nil { // also whether it is its user's: its pid may have been reused
		return nil, nil, err
	}
	if descendant == 0 {
		return caller, func() {}, nil
	}
	p, err = hostprocess.Open(descendant, caller.UID)
	if err != nil {
		return nil, nil, err
	}
	if err := host.CheckDescendant(p, caller); err != nil {
		p.Close()
		return nil, nil, err
	}
	return p, p.Close, nil
}

// placeProcess moves the caller, or a descendant of it, into a cgroup without a lease.
func (s *Server) placeProcess(ctx context.Context, c *caller, r protocol.Cgroup) (*protocol.Placed, error) {
	if err := s.requireV2(); err != nil {
		return nil, err
	}
	p, done, err := openAsker(s.node.ProcessHost(), c.Process, r.Descendant)
	if err != nil {
		return nil, err
	}
	defer done()
	if r.Join != "" {
		return &protocol.Placed{Cgroup: r.Join}, s.node.JoinPlace(ctx, p, r.Join)
	}
	leave, ok := s.enterOf(s.placed, c.UID, maxPlaced)
	if !ok {
		return nil, protocol.Errorf(protocol.CodeLimit, "user %d has %d cgroups without a lease, the most that are allowed", c.UID, maxPlaced)
	}
	group, placed, err := s.node.PlaceProcess(ctx, p)
	if err != nil || !placed {
		leave()
		return &protocol.Placed{Cgroup: group}, err
	}
	s.removeWithProcesses(group, leave)
	return &protocol.Placed{Cgroup: group}, nil
}

func (s *Server) requireV2() error {
	if s.node.Cgroups().Version != cgroup.V2 {
		return protocol.Errorf(protocol.CodeFailed, "leases without root need cgroup version 2 alone, and this machine has version 1: a user with a cgroup there could leave that of the lease")
	}
	return nil
}

// adopt takes a lease for a running process of the caller's user, and moves that process and its descendants.
func (s *Server) adopt(ctx context.Context, c *caller, a protocol.Adopt) (*protocol.Granted, error) {
	wanted, err := parseRequest(a.Request)
	if err != nil {
		return nil, err
	}
	p, err := hostprocess.Open(a.PID, c.UID)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if _, err := s.node.ProcessHost().Examine(p); err != nil { // first of all, whether it is the user's
		return nil, err
	}
	if err := s.node.ProcessHost().CheckUserNamespace(p); err != nil {
		return nil, err
	}
	name := s.node.ProcessHost().Name(p)
	return s.leaseProcess(ctx, c, berth.ProcessLease{
		Process: p, Tree: true, Skip: c.PID, Name: name, Command: name, Request: wanted, Wait: a.Wait(),
	})
}

func parseRequest(text string) (request.Request, error) {
	if len(text) > maxRequest {
		return request.Request{}, protocol.Errorf(protocol.CodeLimit, "the request has %d bytes, and a user's can have %d", len(text), maxRequest)
	}
	r, err := request.Parse(text)
	if err != nil {
		return r, protocol.Errorf(protocol.CodeMessage, "%v", err)
	}
	return r, nil
}

// checkNICLeases refuses another lease of a user who has too many that hold nothing but NICs.
func (s *Server) checkNICLeases(uid int) error {
	leases, err := s.node.Leases()
	if err != nil {
		return err
	}
	count := 0
	for _, l := range leases {
		if berth.IsCommandOf(l.Owner, uid) && !slices.ContainsFunc(l.Devices, func(d gpu.Device) bool { return !d.IsNIC() }) {
			count++
		}
	}
	if count >= maxNICLeases {
		return protocol.Errorf(protocol.CodeLimit, "user %d has %d leases without a GPU, the most that are allowed", uid, count)
	}
	return nil
}

// leaseProcess takes a lease for a process of the caller's user.
func (s *Server) leaseProcess(ctx context.Context, c *caller, p berth.ProcessLease) (*protocol.Granted, error) {
	if err := s.requireV2(); err != nil {
		return nil, err
	}
	waiter := p.Process
	if p.Tree { // the process that is adopted doesn't wait
		waiter = c.Process
	}
	if _, err := s.node.ProcessHost().Examine(waiter); err != nil { // fills in what identifies the waiting process
		return nil, err
	}
	done, err := s.beginAsking(p.Process)
	if err != nil {
		return nil, err
	}
	defer done()
	if p.Wait != 0 {
		leave, ok := s.enterOf(s.waiting, c.UID, maxWaiting)
		if !ok {
			return nil, protocol.Errorf(protocol.CodeLimit, "user %d has %d waiting requests, the most that are allowed", c.UID, maxWaiting)
		}
		defer leave()
	}
	if !p.Request.GPUs() {
		if err := s.checkNICLeases(c.UID); err != nil {
			return nil, err
		}
	}
	p.Waiter = waiter.Process
	p.Waiting = func(b ledger.BusyError) {
		busy := protocol.NewBusy(s.newViewer(c.UID).hideHolders(b))
		if sendReply(c.conn, protocol.Reply{Waiting: &busy}) != nil {
			_ = c.conn.Close() // watchConnection notices; half a message may be sent
		}
	}
	lease, moved, err := s.node.LeaseProcess(ctx, p)
	if err != nil {
		var busy *ledger.BusyError
		if errors.As(err, &busy) {
			hidden := s.newViewer(c.UID).hideHolders(*busy)
			err = &hidden
		}
		return nil, err
	}
	s.endWithHolder(lease)
	granted := &protocol.Granted{Lease: lease, Environment: berth.CommandEnvironment(lease), Remarks: moved.Remarks, PIDs: moved.PIDs}
	for _, o := range hideOccupied(s.node.FindOccupied(lease.Devices), s.show) {
		granted.Remarks = append(granted.Remarks, o.String())
	}
	return granted, nil
}

// beginAsking refuses a second request for a process at the same time: with two leases, the process would
// leave the cgroup of the first, and could keep its devices open.
func (s *Server) beginAsking(p *hostprocess.Process) (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asking[p.Process] {
		return nil, protocol.Errorf(protocol.CodeCaller, "process %d is getting a lease already, by another connection", p.PID)
	}
	s.asking[p.Process] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.asking, p.Process)
	}, nil
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
		case !berth.IsCommandOf(l.Owner, uid):
			return protocol.Errorf(protocol.CodeForbidden, "lease %s is not one that user %d has taken with berth alloc or berth adopt: only root can end it", l.ID, uid)
		case r.Force:
			err = s.node.Evict(ctx, l)
		default:
			err = s.node.ReleaseIfDead(ctx, l.ID)
		}
		if err != nil {
			return err
		}
		if err := s.node.SweepCommandCgroups(ctx); err != nil { // what others have left
			s.log.Warn("remove cgroups that are left", "error", err)
		}
		return s.node.RemoveCommandCgroup(ctx, l.Owner.Cgroup)
	}
	return fmt.Errorf("release lease %.20q: %w", strings.TrimSpace(r.Lease), ledger.ErrNotFound)
}
