package launcher

import (
	"errors"

	"github.com/berth-gpu/berth/launcher/rootfs"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// Errors that callers branch on.
var (
	// ErrNotRoot: device rules and mounts need root of the machine.
	ErrNotRoot = spec.ErrNotRoot
	// ErrNoRuntime: there is no OCI runtime to run a container with.
	ErrNoRuntime = errors.New("no OCI runtime")
	// ErrNotFound: the image has no such command.
	ErrNotFound = rootfs.ErrNotFound
	// ErrCantInvoke: the image has the command, and it can't be executed.
	ErrCantInvoke = rootfs.ErrCantInvoke
)

// MissingInterpreter: what the command has to be started with is missing. It Is
// ErrNotFound.
type MissingInterpreter = rootfs.MissingInterpreter

// Interrupted, OutOfMemory and TimedOut say why a launch or a task ended.
type (
	Interrupted = supervise.Interrupted
	OutOfMemory = supervise.OutOfMemory
	TimedOut    = supervise.TimedOut
)
