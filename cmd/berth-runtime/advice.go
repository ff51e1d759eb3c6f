package main

import (
	"errors"
	"fmt"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// advised says what whoever started the container can do: the engine prints the
// error, and nobody is there to ask.
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
