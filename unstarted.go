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

// defaultUnstarted is what policy.unstarted means without a value.
const defaultUnstarted = time.Hour

// unstartedLimit returns how long a container may wait for its start; 0 is for ever.
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

// waitsForStart says whether the container of a lease was made and not started. Its init then
// waits at a pipe in the directory of the runtime's state, which runc and crun remove when they
// start it. Only root can write there.
func waitsForStart(s ledger.Status) bool {
	if !s.Live || s.Owner.RuntimeRoot == "" || s.Owner.Container == "" {
		return false
	}
	fi, err := os.Lstat(filepath.Join(s.Owner.RuntimeRoot, s.Owner.Container, "exec.fifo"))
	return err == nil && fi.Mode()&os.ModeNamedPipe != 0
}

// EvictUnstarted ends the containers that were made longer ago than policy.unstarted and never
// started, and their leases: the client that was to start them is gone, as after a ctr run that
// was killed. It returns what it has ended. berth run looks after its own containers.
func (n *Node) EvictUnstarted(ctx context.Context) (ended []ledger.Lease, err error) {
	limit, err := n.config.Policy.unstartedLimit()
	if err != nil || limit == 0 {
		return nil, err
	}
	view, err := n.View()
	if err != nil {
		return nil, err
	}
	for _, s := range view.Leases {
		if !s.Created || s.Owner.EntryPoint == "run" || process.Age(s.Owner.Process.Start) < limit || !waitsForStart(s) {
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
