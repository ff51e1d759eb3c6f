package berth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// defaultUnstarted is the default of policy.unstarted.
const defaultUnstarted = time.Hour

// unstartedLimit returns how long a container may wait for its start; 0 means no limit.
func (p Policy) unstartedLimit() (time.Duration, error) {
	switch p.Unstarted {
	case "":
		return defaultUnstarted, nil
	case "never":
		return 0, nil
	}
	limit, err := time.ParseDuration(p.Unstarted)
	if err != nil || limit <= 0 {
		return 0, fmt.Errorf(`policy.unstarted: %q is neither a time such as "1h" nor "never"`, p.Unstarted)
	}
	return limit, nil
}

// isCreated reports whether the container of a bound lease was created and not started. It is false if that can't be
// determined. See [process.WaitsForStart].
func (n *Node) isCreated(s ledger.Status) bool {
	if !s.Live || s.State != ledger.Bound || s.Owner.Container == "" {
		return false
	}
	proc, init := n.config.GPUHost().ProcPath(), s.Owner.Process
	own, err := process.Namespace(proc, os.Getpid())
	if err != nil {
		return false
	}
	if own == init.Namespace {
		return process.WaitsForStart(proc, init.PID, init.Start)
	}
	// The init has another pid here. It is the only process of a container that was not started, and its start time
	// is the same in each pid namespace.
	if s.Owner.Cgroup == "" {
		return false
	}
	pids, err := n.cgroups.PIDs(s.Owner.Cgroup)
	return err == nil && len(pids) == 1 && process.WaitsForStart(proc, pids[0], init.Start)
}

// waitsForStart reports whether the container of a reserved lease was created and not started. Its init isn't known
// yet. runc and crun remove the FIFO at which it waits when they start the container. Only root can write to their
// state directories.
func waitsForStart(s ledger.Status) bool {
	if !s.Live || s.State == ledger.Bound || s.Owner.RuntimeRoot == "" || s.Owner.Container == "" {
		return false
	}
	fi, err := os.Lstat(filepath.Join(s.Owner.RuntimeRoot, s.Owner.Container, "exec.fifo"))
	return err == nil && fi.Mode()&os.ModeNamedPipe != 0
}

// EvictUnstarted ends containers that were created longer ago than policy.unstarted and never
// started, and releases their leases. The client of such a container has ended, for instance
// a ctr run that was killed. Containers of berth run are left to berth run. EvictUnstarted
// returns the leases that it has ended.
func (n *Node) EvictUnstarted(ctx context.Context) (ended []ledger.Lease, err error) {
	limit, err := n.config.Policy.unstartedLimit()
	if err != nil || limit == 0 {
		return nil, err
	}
	view, err := n.ledger.View()
	if err != nil {
		return nil, err
	}
	for _, s := range view.Leases {
		if s.Owner.EntryPoint == "run" || process.Age(s.Owner.Process.Start) < limit || !n.isCreated(s) {
			continue
		}
		if e := n.Evict(ctx, s.Lease); e != nil {
			err = errors.Join(err, fmt.Errorf("end container %s, which was never started: %w", s.Owner.Container, e))
			continue
		}
		ended = append(ended, s.Lease)
	}
	return ended, err
}
