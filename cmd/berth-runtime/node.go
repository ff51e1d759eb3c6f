package main

import (
	"context"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/hook/say"
	"github.com/berth-gpu/berth/hook/wrapper"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// node is this machine for the wrapper.
type node struct {
	*berth.Node
	ledger *ledger.Ledger
}

func openNode(c berth.Config) (wrapper.Node, error) {
	n, err := berth.Open(c)
	if err != nil {
		return nil, err
	}
	l := ledger.Open(ledger.Options{Dir: c.State, Events: c.Data, Proc: c.Host.Proc, Cgroup: c.Host.Cgroup})
	return node{n, l}, nil
}

// Acquire implements wrapper.Node.
func (n node) Acquire(ctx context.Context, ask ledger.Ask) (ledger.Lease, error) {
	l, err := n.Node.Acquire(ctx, ask)
	return l, say.Advised(err)
}

// Leases implements wrapper.Node. Unlike View it doesn't need the inventory.
func (n node) Leases() ([]ledger.Status, error) {
	view, err := n.ledger.View()
	return view.Leases, err
}

// Held implements wrapper.Node.
func (n node) Held() ([]ledger.Lease, error) { return n.ledger.Held() }
