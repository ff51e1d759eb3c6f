package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/hook/bundle"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// leaseAnnotation is in a spec that berth has prepared for a lease.
const leaseAnnotation = "dev.berth.lease"

// holdsLease says that the container has its lease: this very process is bound to one,
// or the spec names one that is the container's and whose maker is still at it. A
// lease of an earlier life of the same container isn't it.
func (h Hook) holdsLease(c creating) (bool, error) {
	leases, err := h.Node.Leases()
	if err != nil {
		return false, err
	}
	for _, l := range leases {
		if l.Owner.Container != c.ID || l.Owner.Bundle != "" && !sameBundle(l.Owner.Bundle, c.Bundle) {
			continue
		}
		if l.State == ledger.Reserved && l.Making && l.ID == c.spec.Annotations[leaseAnnotation] {
			return true, nil
		}
		started, err := process.Start(cmp.Or(h.Proc, "/proc"), c.Pid)
		if err != nil {
			return false, err
		}
		if l.Owner.Process.PID == c.Pid && l.Owner.Process.Start == started {
			return true, nil
		}
	}
	return false, nil
}

// takeLease leases what is asked for, to the container's first process from the first
// moment: whatever happens to this hook, the lease ends with it.
func (h Hook) takeLease(ctx context.Context, c creating, place string, req request.Request) (ledger.Lease, error) {
	owner := c.newOwner(place)
	lease, err := h.Node.Acquire(ctx, ledger.Ask{Owner: owner, Request: req})
	if err != nil {
		return lease, err
	}
	if err := h.Node.Bind(ctx, lease.ID, owner); err != nil {
		return lease, errors.Join(err, h.Node.Release(context.WithoutCancel(ctx), lease.ID))
	}
	return lease, nil
}

func (c creating) newOwner(place string) ledger.Owner {
	return ledger.Owner{
		Door: "hook", Container: c.ID, Bundle: filepath.Clean(c.Bundle), UID: os.Getuid(),
		Command: bundle.CommandLine(c.spec), Cgroup: place, Process: ledger.Process{PID: c.Pid},
	}
}

// releaseFormerLease gives back what an earlier life of the container held, which is over: an
// engine that restarts a container makes the same cgroup again. In the ledger's eyes
// the new first process, which is in it already, could be one that the old one has
// left behind, if there was no pid namespace that ended with it.
//
// A life is over when its first process has ended and nobody is in its cgroup but the
// new one. What can't be told stays, and is for the ledger to judge.
func (h Hook) releaseFormerLease(ctx context.Context, c creating, place string) error {
	leases, err := h.Node.Leases()
	if err != nil {
		return err
	}
	for _, l := range leases {
		if !l.Live || l.State != ledger.Bound || l.Owner.Container != c.ID || l.Owner.Cgroup != place || !sameBundle(l.Owner.Bundle, c.Bundle) {
			continue
		}
		over, err := h.hasEnded(l.Owner.Process, c.Pid, place)
		if err == nil && over {
			err = h.Node.Release(ctx, l.ID)
		}
		if err != nil {
			return fmt.Errorf("end lease %s of the container's earlier life: %w", l.ID, err)
		}
	}
	return nil
}

// hasEnded says that of a container's processes none lives but its new first one.
func (h Hook) hasEnded(first ledger.Process, now int, place string) (bool, error) {
	proc := cmp.Or(h.Proc, "/proc")
	own, err := pidNamespace(proc)
	if err != nil || own != first.Namespace {
		return false, err // others' processes may be hidden from here
	}
	started, err := process.Start(proc, first.PID)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return false, err
	case started == first.Start:
		return false, nil
	}
	pids, err := h.Cgroups.PIDs(place)
	if err != nil {
		return false, fmt.Errorf("list the processes of cgroup %s: %w", place, err)
	}
	return slices.Equal(pids, []int{now}), nil
}

// pidNamespace is the pid namespace of this process, as the ledger records it.
func pidNamespace(proc string) (uint64, error) {
	path := filepath.Join(proc, "self/ns/pid")
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}
