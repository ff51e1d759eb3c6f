package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/client"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// ViewLeases returns the leases and the queue: from the ledger, or from the broker if this user may not
// read the ledger.
func ViewLeases(ctx context.Context, node *berth.Node) (ledger.View, error) {
	view, err := node.View()
	if !errors.Is(err, fs.ErrPermission) || verb.NeedRoot() == nil {
		return view, err
	}
	view, err = client.New(node.State()).View(ctx)
	return view, AdviseBroker(err)
}

// AdviseBroker returns the error for a user without root if no broker runs.
func AdviseBroker(err error) error {
	if !errors.Is(err, client.ErrNoBroker) {
		return err
	}
	return fmt.Errorf("%w, or have the admin start the broker: systemctl enable --now berth-broker.socket", verb.NeedRoot())
}
