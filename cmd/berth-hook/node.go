package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
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
func (n node) Bind(ctx context.Context, id string, p ledger.Process, cgroup string) error {
	return n.leases.Bind(ctx, id, p, cgroup)
}

// advised adds the way out to an error that has one.
func advised(err error) error {
	var busy *ledger.BusyError
	var match *gpu.MatchError
	if errors.As(err, &busy) || errors.As(err, &match) {
		err = fmt.Errorf("request %w", err)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, gpu.ErrBusy):
		return fmt.Errorf("%w; try again when they are free: berth leases shows who holds what", err)
	case errors.Is(err, gpu.ErrUnknown), errors.Is(err, gpu.ErrTooMany), errors.Is(err, gpu.ErrLost):
		return fmt.Errorf("%w; berth gpus shows what there is", err)
	case errors.Is(err, ledger.ErrCorrupt), errors.Is(err, ledger.ErrOwnership):
		return fmt.Errorf("%w; berth repair rebuilds it from what runs", err)
	}
	return err
}

// oneLine is the error as engines can show it, without the words by which docker
// decides that the user's command is missing or can't be run.
func oneLine(err error) string {
	text := strings.NewReplacer(
		"\n", "; ",
		"no such file or directory", "it does not exist",
		"permission denied", "access was refused",
		"executable file not found", "program is missing",
	).Replace(err.Error())
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}
