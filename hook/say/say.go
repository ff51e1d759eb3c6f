// Package say is how berth speaks through an engine, which shows its user one line of
// a runtime's or a hook's: the line, and what to do about it. Nobody is there to ask.
package say

import (
	"errors"
	"fmt"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// ErrRootless: a user's own engine asks, in a user namespace or as the user.
var ErrRootless = errors.New("this engine is a user's own (rootless)")

// Advised adds to an error what whoever started the container can do. Where the engine
// isn't root's, that was the reason: nothing of what is said then about the ledger
// and the snapshot, which are root's, would help.
func Advised(err error) error {
	if err == nil {
		return nil
	}
	root, unknown := process.HostRoot("/proc")
	return advised(err, root || unknown != nil)
}

func advised(err error, root bool) error {
	if !root {
		return fmt.Errorf("%w: only root can lease devices: start the container by root's engine (sudo)", ErrRootless)
	}
	var busy *ledger.BusyError
	var match *gpu.MatchError
	if errors.As(err, &busy) || errors.As(err, &match) {
		err = fmt.Errorf("request %w", err)
	}
	switch {
	case errors.Is(err, gpu.ErrBusy):
		return fmt.Errorf("%w; try again when they are free: berth leases shows who holds what", err)
	case errors.Is(err, gpu.ErrUnknown), errors.Is(err, gpu.ErrTooMany), errors.Is(err, gpu.ErrLost):
		return fmt.Errorf("%w; berth gpus shows what there is", err)
	case errors.Is(err, ledger.ErrCorrupt), errors.Is(err, ledger.ErrOwnership):
		return fmt.Errorf("%w; berth repair rebuilds it from what runs", err)
	}
	return err
}

// Line makes one line of a message, without the words by which docker decides that the
// *user's command* is missing or can't be run, and changes its exit code: an error of
// berth's is neither.
func Line(message string) string {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ReplaceAll(message, "\n", "; "))
	return strings.NewReplacer(
		"no such file or directory", "it does not exist",
		"permission denied", "access was refused",
		"executable file not found", "program is missing",
		"is a directory", "names a directory",
		"not a directory", "names no directory",
		"exec format error", "cannot be executed",
	).Replace(clean)
}
