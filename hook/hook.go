// Package hook holds the bodies of berth's OCI hooks.
//
// A hook gets the container's state on standard input. It runs where the runtime runs,
// while the container is created. Hooks are for engines without the wrapper: lease and
// edits are the same, but they are applied from outside to a container that exists
// already (package inject), and not to a spec.
//
//   - createRuntime, prestart ([Hook.Create]): take the lease, and inject its devices.
//   - precreate ([Hook.Precreate]): podman's stage. It gets the spec before the container
//     exists, and changes it as the wrapper does. bind ([Hook.Bind]) then makes the
//     container the holder of the lease.
//   - mount ([Hook.Mount]): adds one read-only bind that the runtime cannot make itself.
//   - netdev ([Hook.NetDevices]): moves network devices into the container, because not
//     every runtime can.
//   - rdma ([Hook.RDMA]): the same for RDMA devices, which no runtime moves.
//   - poststop ([Poststop]): releases the lease, where no wrapper sees the delete. Without
//     it the ledger releases the lease of a dead holder.
//
// Of the state only the container's id, process and bundle count, never its annotations.
// What the container asks for is read from the bundle's config.json, which the engine
// has written.
//
// docs/runtime.md has a table of what a hook cannot do and the wrapper does.
package hook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/hook/entry"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Node is what the hooks that create a container need of a machine.
type Node interface {
	Leases
	// CanReachAccelerator reports whether a container without a request could reach an accelerator.
	// bundle is its directory, "" if it is unknown.
	CanReachAccelerator(spec *specs.Spec, bundle string) (bool, error)
	// IsExempt reports whether the admin's policy exempts a container without a request
	// from isolation.
	IsExempt(spec *specs.Spec, bundle string) (bool, error)
	// IdentifyDevices returns the GPUs and MIG slices to which device nodes belong.
	IdentifyDevices(ctx context.Context, nodes []specs.LinuxDevice) ([]gpu.Device, error)
	// Acquire takes a lease. The node sets the inventory of ask.
	Acquire(ctx context.Context, ask ledger.Ask) (ledger.Lease, error)
	// Bind records the container's init and cgroup as the proof that the holder lives, and
	// its id and bundle if the lease does not have them yet.
	Bind(ctx context.Context, id string, o ledger.Owner) error
	// Compose returns the edits for the lease's devices, for none if lease is nil, and
	// writes the loader's cache into the root.
	Compose(ctx context.Context, spec *specs.Spec, lease *ledger.Lease, root *os.File) (edits.Edits, []edits.Removal, error)
	// Release releases a lease. A lease that does not exist is not an error.
	Release(ctx context.Context, id string) error
	// NoteRuntimeRoot remembers a state directory of a runtime, in which running containers are found. Those
	// whose spec or cgroup names a lease are found again if the ledger is lost.
	NoteRuntimeRoot(root string)
	// NoteLease records the lease at its cgroup, because the container's spec doesn't name the lease.
	NoteLease(l ledger.Lease) error
	// LogRemovals writes an event to the event log.
	LogRemovals(event, lease string, owner ledger.Owner, removed []edits.Removal)
}

// Leases is what a hook needs of the ledger.
type Leases interface {
	// Leases lists all leases with the state of their holders.
	Leases() ([]ledger.Status, error)
	// ReleaseIfDead releases a lease unless its holder lives: then the error Is
	// ledger.ErrLive. A lease that does not exist is not an error.
	ReleaseIfDead(ctx context.Context, id string) error
}

// Hook has the dependencies of the hooks. Node, Cgroups and SetRules are required by the stages that
// use them.
type Hook struct {
	Node    Node
	Cgroups cgroup.Hierarchy
	// SetRules replaces the device rules of an existing cgroup.
	SetRules func(path string, rules []edits.Rule) error
	// Proc and Dev are where procfs and the host's nodes are, "" for /proc and /dev.
	Proc, Dev string
	// Trust is the policy on requests that may come from an untrusted image.
	Trust entry.Trust
	// Call is how this program is called by hooks that it adds: its path, and the words
	// that come before the stage.
	Call []string
}

// Poststop releases the lease of the container in the OCI state, known by id and bundle.
// It is idempotent, and no lease is not an error. The lease of a container whose
// processes live on stays, whatever the state says.
//
// A hook that runs late can meet the next container of the same id while that is
// created: its lease stays.
func Poststop(ctx context.Context, state io.Reader, l Leases) error {
	s, err := decodeState(state)
	if err != nil {
		return err
	}
	switch s.Status {
	case specs.StateCreating, specs.StateCreated, specs.StateRunning:
		return fmt.Errorf("container %s is %s: its devices stay with it", s.ID, s.Status)
	}
	leases, err := l.Leases()
	if err != nil {
		return err
	}
	for _, lease := range leases {
		// A lease that precreate has taken has no bundle. ReleaseIfDead checks it anyway.
		if lease.Owner.Container != s.ID || lease.Owner.Bundle != "" && !sameBundle(lease.Owner.Bundle, s.Bundle) {
			continue
		}
		if lease.Making {
			continue
		}
		err = errors.Join(err, l.ReleaseIfDead(ctx, lease.ID))
	}
	return err
}
