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
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/internal/json"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// stateLimit is how many bytes of state are read. It carries all annotations,
// which engines limit to far less.
const stateLimit = 4 << 20

// Leases is what a hook needs of the ledger.
type Leases interface {
	// Leases lists all leases, and says whose holders live.
	Leases() ([]ledger.Status, error)
	// ReleaseIfDead gives a lease back unless its holder lives: then the error Is
	// ledger.ErrLive. One that is gone is no error.
	ReleaseIfDead(ctx context.Context, id string) error
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

func decodeState(r io.Reader) (specs.State, error) {
	var s specs.State
	data, err := io.ReadAll(io.LimitReader(r, stateLimit+1))
	if err != nil {
		return s, fmt.Errorf("read container state: %w", err)
	}
	if len(data) > stateLimit {
		return s, fmt.Errorf("read container state: more than the limit of %d bytes", stateLimit)
	}
	if err := new(json.Codec).Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("read container state: %w", err)
	}
	if s.ID == "" {
		return s, errors.New("read container state: it has no id")
	}
	return s, nil
}

// sameBundle compares directories that may be gone by now, or be written in
// different ways.
func sameBundle(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	fa, err := os.Stat(a)
	if err != nil {
		return false
	}
	fb, err := os.Stat(b)
	return err == nil && os.SameFile(fa, fb)
}
