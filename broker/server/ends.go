package server

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// holderPollInterval is how often the broker looks whether the holder of a lease has ended.
const holderPollInterval = time.Second

// endTimeout bounds the end of a lease: the search for its devices, and the removal of its cgroup.
const endTimeout = time.Minute

// endWithHolder ends a lease soon after the last process of its holder. Without it, as after the broker was killed, the
// next request for devices ends the lease.
func (s *Server) endWithHolder(l ledger.Lease) {
	if l.Owner.Step != "" {
		s.endWithStep(l)
	}
	s.whenEmpty(l.Owner.Cgroup, l.Owner.Cgroup, func(ctx context.Context) error {
		err := s.node.ReleaseIfDead(ctx, l.ID)
		if err == nil || errors.Is(err, ledger.ErrNotFound) { // another process has ended it
			err = s.node.RemoveCommandCgroup(ctx, l.Owner.Cgroup)
		}
		return err
	})
}

// endWithStep kills the processes of a lease soon after the Slurm step that its holder was started in. Slurm can't, because they
// aren't in the step's cgroup.
func (s *Server) endWithStep(l ledger.Lease) {
	s.whenEmpty(l.Owner.Step+" "+l.ID, l.Owner.Step, func(ctx context.Context) error {
		leases, err := s.node.Leases()
		if err != nil || !slices.ContainsFunc(leases, func(now ledger.Lease) bool { return now.ID == l.ID }) {
			return err
		}
		s.log.Info("end a lease with its Slurm step", "lease", l.ID, "step", l.Owner.Step)
		if err := s.node.Evict(ctx, l); !errors.Is(err, ledger.ErrNotFound) { // it has ended meanwhile
			return err
		}
		return nil
	})
}

// watchLeases is endWithHolder for the leases of commands that earlier brokers have taken.
func (s *Server) watchLeases() {
	if s.unusable != nil {
		return
	}
	leases, err := s.node.Leases()
	if err != nil {
		return // requests report the error
	}
	for _, l := range leases {
		if berth.IsCommandCgroup(l.Owner.Cgroup) {
			s.endWithHolder(l)
		}
	}
}

// removeWithProcesses removes a cgroup without a lease soon after the last of its processes has ended, and then calls done.
func (s *Server) removeWithProcesses(group string, done func()) {
	s.whenEmpty(group, group, func(ctx context.Context) error {
		defer done()
		return s.node.RemoveCommandCgroup(ctx, group)
	})
}

// whenEmpty calls end in the background when a cgroup has no process any more or is gone, once for each key.
func (s *Server) whenEmpty(key, group string, end func(ctx context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watched[key] { // a process can ask for its lease again
		return
	}
	s.watched[key] = true
	go func() {
		for s.endWhenEmpty(group, end) { // a process has joined meanwhile
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watched, key)
	}()
}

// endWhenEmpty waits until a cgroup has no process any more or is gone, and calls end. It returns true if a holder lives.
func (s *Server) endWhenEmpty(group string, end func(ctx context.Context) error) (again bool) {
	for {
		time.Sleep(holderPollInterval)
		populated, err := s.node.Cgroups().Populated(group)
		if err != nil && cgroup.IsGone(err) || err == nil && !populated {
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	err := end(ctx)
	if errors.Is(err, ledger.ErrLive) {
		return true
	}
	if err != nil { // the next request for devices tries again
		s.log.Warn("end what a holder has left", "cgroup", group, "error", err)
	}
	return false
}
