package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/client"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// ViewLeases returns the leases and the queue: from the ledger, or from the broker if this user may not
// read the ledger. If there is none, a user can't tell whether it is lost, because holders are found by files of root.
func ViewLeases(ctx context.Context, node *berth.Node) (ledger.View, error) {
	view, err := node.View()
	none := err == nil && len(view.Leases)+len(view.Queue) == 0
	if !none && !errors.Is(err, fs.ErrPermission) || verb.NeedRoot() == nil {
		return view, err
	}
	answer, err := client.New(node.State()).View(ctx)
	if none && errors.Is(err, client.ErrNoBroker) {
		return view, nil
	}
	return answer, AdviseBroker(err)
}

// AdviseBroker returns the error for a user without root if no broker runs.
func AdviseBroker(err error) error {
	if !errors.Is(err, client.ErrNoBroker) {
		return err
	}
	root := verb.NeedRoot()
	if verb.IsHelped() {
		root = fmt.Errorf("this needs root, and runs as user %d: use sudo", userns.OuterUID())
	}
	return fmt.Errorf("%w, or have the admin start the broker: systemctl enable --now berth-broker.socket", root)
}
