// Package hook holds the bodies of berth's OCI hooks.
//
// A hook gets the container's state on standard input and runs where the runtime
// runs. There is one: [Poststop] gives back what a container held, for those who
// run containers without the wrapper's delete. A lease that no hook has ended is
// ended by its proof of life, so a hook that never runs costs nothing.
//
// The state names a container and nothing more: of its annotations nothing counts,
// for the user of an engine can write them.
package hook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

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
	s, err := readState(state)
	if err != nil {
		return err
	}
	leases, err := l.Leases()
	if err != nil {
		return err
	}
	for _, lease := range leases {
		if lease.Owner.Container != s.ID || !sameBundle(lease.Owner.Bundle, s.Bundle) {
			continue
		}
		if lease.Making {
			continue
		}
		err = errors.Join(err, l.ReleaseIfDead(ctx, lease.ID))
	}
	return err
}

func readState(r io.Reader) (specs.State, error) {
	var s specs.State
	data, err := io.ReadAll(io.LimitReader(r, stateLimit+1))
	if err != nil {
		return s, fmt.Errorf("read container state: %w", err)
	}
	if len(data) > stateLimit {
		return s, fmt.Errorf("read container state: more than the limit of %d bytes", stateLimit)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("read container state: %w", err)
	}
	switch {
	case s.ID == "":
		return s, errors.New("read container state: it has no id")
	case s.Status == specs.StateCreating, s.Status == specs.StateCreated, s.Status == specs.StateRunning:
		return s, fmt.Errorf("container %s is %s: its devices stay with it", s.ID, s.Status)
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
