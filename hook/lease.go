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

// leaseAnnotation is the id of the lease for which berth has prepared a spec.
const leaseAnnotation = "dev.berth.lease"

// holdsLease reports whether the container has its lease: its init is bound to one, or
// the spec names one that is the container's and whose maker still creates it. A lease
// of an earlier container of the same id does not count.
func (h Hook) holdsLease(c container) (bool, error) {
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

// takeLease takes the lease and binds it to the container's init at once: if this hook
// ends, the lease ends with the container. A lease that can't be noted at the container's cgroup is an error:
// if the ledger were lost, the container's devices would be leased a second time.
func (h Hook) takeLease(ctx context.Context, c container, place string, req request.Request) (ledger.Lease, error) {
	h.noteRuntimeRoot(c)
	owner := c.newOwner(place)
	lease, err := h.Node.Acquire(ctx, ledger.Ask{Owner: owner, Request: req})
	if err != nil {
		return lease, err
	}
	if err = h.Node.Bind(ctx, lease.ID, owner); err == nil {
		err = h.Node.NoteLease(lease)
	}
	if err != nil {
		return lease, errors.Join(err, h.Node.Release(context.WithoutCancel(ctx), lease.ID))
	}
	return lease, nil
}

// noteRuntimeRoot notes the state directory of the runtime that has started this hook. The OCI state doesn't name it.
func (h Hook) noteRuntimeRoot(c container) {
	if root := findRuntimeRoot(cmp.Or(h.Proc, "/proc"), os.Getppid(), c.ID); root != "" {
		h.Node.NoteRuntimeRoot(root)
	}
}

func (c container) newOwner(place string) ledger.Owner {
	return ledger.Owner{
		EntryPoint: "hook", Container: c.ID, Bundle: filepath.Clean(c.Bundle), UID: os.Getuid(),
		Command: bundle.CommandLine(c.spec), Cgroup: place, Process: ledger.Process{PID: c.Pid},
	}
}

// releaseFormerLease releases what an earlier run of the container held. An engine that
// restarts a container creates the same cgroup again. The new init is in it already, and
// without a pid namespace the ledger cannot tell it from a process that the earlier run
// has left behind.
//
// An earlier run has ended when its init has ended and only the new init is in the
// cgroup. If that is unknown, the lease stays, and the ledger decides.
func (h Hook) releaseFormerLease(ctx context.Context, c container, place string) error {
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
			return fmt.Errorf("release lease %s of the container's earlier run: %w", l.ID, err)
		}
	}
	return nil
}

// hasEnded reports whether the earlier run has ended: its init is dead, and the new init is the only
// process in the container's cgroup.
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

// pidNamespace returns this process's pid namespace, as the ledger records it.
func pidNamespace(proc string) (uint64, error) {
	path := filepath.Join(proc, "self/ns/pid")
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}
