package main

import (
	"context"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/isolation/ledger"
)

type rule = edits.Rule

// leases is the ledger for the hook.
type leases struct{ *ledger.Ledger }

// Leases implements hook.Leases. Unlike a node's view it doesn't need the inventory.
func (l leases) Leases() ([]ledger.Status, error) {
	view, err := l.View()
	return view.Leases, err
}

// node is this machine for the hook.
type node struct {
	*berth.Node
	leases leases
}

// Leases implements hook.Node.
func (n node) Leases() ([]ledger.Status, error) { return n.leases.Leases() }

// Bind implements hook.Node.
func (n node) Bind(ctx context.Context, id string, o ledger.Owner) error {
	return n.leases.Bind(ctx, id, o)
}
