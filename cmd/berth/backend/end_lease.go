package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/client"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// PrintLeft tells that processes of a command still hold its lease.
func PrintLeft(processes, devices string) {
	fmt.Fprintf(os.Stderr, "berth: the command left %s running; GPU %s stays leased until the last has ended\n", processes, devices)
}

// HasRemaining reports whether processes are still in the cgroup a moment after the command has ended. It waits because a
// signal to a job ends its processes one after another.
func HasRemaining(tree cgroup.Hierarchy, group string) (live bool, err error) {
	for range 20 {
		if live, err = tree.Populated(group); err != nil || !live {
			return live, err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return live, nil
}

// EndLease has the broker end the lease of a command that has ended. If processes of the command live on, the lease stays until
// they have ended, which is printed. group is the lease's cgroup, and devices are the words for its devices.
func EndLease(ctx context.Context, node *berth.Node, id, group, devices string) error {
	// A process that can't be counted is found by the broker.
	if live, err := HasRemaining(node.Cgroups(), group); err == nil && live {
		left, _ := node.Cgroups().PIDs(group) // only shown
		PrintLeft(output.FormatCount(max(len(left), 1), "process"), devices)
		return nil
	}
	err := client.New(node.State()).Release(ctx, id, false)
	var refused *protocol.Error
	switch {
	case errors.Is(err, ledger.ErrLive):
		PrintLeft("processes", devices)
		return nil
	case errors.Is(err, client.ErrNoBroker), errors.Is(err, client.ErrLost), errors.Is(err, ledger.ErrNotFound):
		return nil // the next request finds that the holder is dead, or has found it
	case errors.As(err, &refused) && refused.Code == protocol.CodeForbidden:
		return nil // the ledger was rebuilt without the lease's user; the next request finds that the holder is dead
	}
	return err
}
