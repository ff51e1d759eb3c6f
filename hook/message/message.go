// Package message words errors for container engines. An engine shows its user one line of what a
// runtime or a hook reports, so the line says what failed and how to fix it.
package message

import (
	"errors"
	"fmt"
	"strings"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// ErrRootless means that the engine is a user's own: it runs in a user namespace or as
// the user.
var ErrRootless = errors.New("this engine is a user's own (rootless)")

// WithAdvice adds to an error what the user who started the container can do. nil stays
// nil. Under a rootless engine the error becomes [ErrRootless]: ledger and snapshot are
// root's, and no advice about them would help.
func WithAdvice(err error) error {
	if err == nil {
		return nil
	}
	root, unknown := process.HostRoot("/proc")
	return withAdvice(err, root || unknown != nil)
}

func withAdvice(err error, root bool) error {
	if !root {
		return fmt.Errorf("%w: only root can lease devices: start the container by root's engine (sudo)", ErrRootless)
	}
	var busy *ledger.BusyError
	var refused *match.Error
	if errors.As(err, &busy) || errors.As(err, &refused) {
		err = fmt.Errorf("request %w", err)
	}
	switch {
	case errors.Is(err, match.ErrBusy):
		return fmt.Errorf("%w; try again when they are free: berth leases shows who holds what", err)
	case errors.Is(err, match.ErrUnknown), errors.Is(err, match.ErrTooMany), errors.Is(err, match.ErrLost):
		return fmt.Errorf("%w; berth gpus lists the node's devices", err)
	case errors.Is(err, ledger.ErrCorrupt), errors.Is(err, ledger.ErrOwnership), errors.Is(err, berth.ErrLedgerLost):
		return fmt.Errorf("%w; berth repair rebuilds it from the running holders", err)
	}
	return err
}

// OneLine makes one printable line of an error's text. It replaces the phrases by which
// docker concludes that the user's command is missing or cannot be run: docker would
// exit with 126 or 127 then, and an error of berth's is neither.
func OneLine(text string) string {
	clean := printable.Line(strings.ReplaceAll(text, "\n", "; "))
	return strings.NewReplacer(
		"no such file or directory", "it does not exist",
		"permission denied", "access was refused",
		"executable file not found", "program is missing",
		"is a directory", "names a directory",
		"not a directory", "names no directory",
		"exec format error", "cannot be executed",
	).Replace(clean)
}
