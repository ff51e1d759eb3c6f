// Package hook holds the bodies of berth's OCI hooks.
//
// A hook gets the container's state on standard input and runs where the runtime
// runs, while the container is made. Hooks are for engines without the wrapper:
// the lease and the edits are the same, applied from outside to a container that
// exists already (package inject), and not to a spec.
//
//   - createRuntime, prestart ([Hook.Create]): takes the lease and brings in what
//     belongs to it.
//   - precreate ([Hook.Precreate]): podman's, gets the spec before there is a
//     container, and changes it as the wrapper does. Then bind ([Hook.Bind])
//     makes the container the holder.
//   - mount ([Hook.Mount]): one read-only bind that a runtime won't make itself.
//   - netdev ([Hook.NetDevices]): moves network devices into the container, for a
//     runtime may not know of them.
//   - rdma ([Hook.RDMA]): the same for RDMA devices, of which no runtime knows.
//   - poststop ([Poststop]): gives back, for those who run containers without the
//     wrapper's delete. A lease that no hook has ended is ended by its proof of
//     life, so a hook that never runs costs nothing.
//
// The state names a container and nothing more: of its annotations nothing counts.
// What counts is the bundle's config.json, which the engine has written.
//
// What a hook can't do, and the wrapper does, is a table in docs/runtime.md.
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

// Node is what hooks that make a container need of a machine.
type Node interface {
	Leases
	// Concerned says whether a spec without a request could reach an accelerator.
	// bundle is its directory, "" if it isn't known.
	Concerned(spec *specs.Spec, bundle string) (bool, error)
	// Exempt says whether the admin lets a container that asks for nothing see what it
	// would see without berth.
	Exempt(spec *specs.Spec, bundle string) (bool, error)
	// Named says which GPUs and slices device nodes belong to.
	Named(ctx context.Context, nodes []specs.LinuxDevice) ([]gpu.Device, error)
	// Acquire takes a lease. It fills in the inventory.
	Acquire(ctx context.Context, ask ledger.Ask) (ledger.Lease, error)
	// Bind records init and cgroup of a container as the proof that it lives, and what
	// the lease doesn't know of its id and bundle.
	Bind(ctx context.Context, id string, o ledger.Owner) error
	// Compose says what has to change for the lease's devices, or without any, and
	// writes the loader's cache into the root.
	Compose(ctx context.Context, spec *specs.Spec, lease *ledger.Lease, root *os.File) (edits.Edits, []edits.Removal, error)
	// Release gives a lease back. One that is gone is no error.
	Release(ctx context.Context, id string) error
	// Tell adds to the log of events what was remarkable about a container.
	Tell(event, lease string, owner ledger.Owner, removed []edits.Removal)
}

// Leases is what a hook needs of the ledger.
type Leases interface {
	// Leases lists all leases, and says whose holders live.
	Leases() ([]ledger.Status, error)
	// ReleaseIfDead gives a lease back unless its holder lives: then the error Is
	// ledger.ErrLive. One that is gone is no error.
	ReleaseIfDead(ctx context.Context, id string) error
}

// Hook is a hook's surroundings. Node, Cgroups and SetRules are required by the
// stages that use them.
type Hook struct {
	Node    Node
	Cgroups cgroup.Hierarchy
	// SetRules replaces the device rules of a cgroup that exists.
	SetRules func(path string, rules []edits.Rule) error
	// Proc and Dev are where procfs and the host's nodes are, "" for the usual places.
	Proc, Dev string
	// Trust says which words of strangers are requests.
	Trust entry.Trust
	// Call is how this program is called again: its path, and the words that come
	// before the stage.
	Call []string
}

// Poststop releases the lease of the container that the OCI state names: the one
// of its id and its bundle. It is idempotent, and no lease is no error. It takes
// nobody's word for the end: the lease of a container that lives on stays.
//
// A hook that runs late can meet the next life of the same id, which is only
// just being made: that one's lease stays.
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
		// What precreate has taken knows no bundle; whether it is dead is asked anyway.
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
