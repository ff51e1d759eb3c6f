// Package setup plans what an engine's configuration needs so that the engine's
// containers get GPUs through berth, and how the change is undone.
//
// Where an engine reads drop-in files, berth's part is a file of its own: containerd 2.x,
// podman, systemd units. Docker's daemon.json and the configuration of containerd 1.x are
// edited in place, because their formats have no drop-ins that add to a table. Text that
// is not berth's stays byte for byte.
//
// The package reads through an [fs.FS] and writes nothing. A [Plan] lists files as they
// are and as they shall be; the caller shows and writes them. A [Record] remembers what
// was replaced. The package runs no engine: the caller passes in what an engine prints.
package setup

import (
	"errors"
	"fmt"
	"strings"
)

// Name is the name of berth's runtime in every engine's configuration.
const Name = "berth"

// ErrNotInstalled means that the host has no trace of the engine.
var ErrNotInstalled = errors.New("isn't installed here")

// ErrNoCRI means that containerd's CRI plugin is off. Nothing else reads runtime classes.
var ErrNoCRI = errors.New("disables the CRI plugin, and only that reads runtimes")

// Engines returns the names of the engines that can be set up.
func Engines() []string { return []string{"docker", "containerd", "podman"} }

// PlanSetup plans the changes that add berth to an engine's configuration. record is that of the last
// setup, nil if there was none. For is idempotent: a plan without changes means that all is set up.
func PlanSetup(engine string, h Host, o Options, record *Record) (Plan, error) {
	switch engine {
	case "docker":
		return planDocker(h, o, record)
	case "containerd":
		return planContainerd(h, o, record)
	case "podman":
		return planPodman(h, o, record)
	}
	return Plan{}, fmt.Errorf("engine %q is not known: %s", engine, strings.Join(Engines(), ", "))
}

// Options are what shall be set up.
type Options struct {
	// Runtime is the path of berth-runtime, Hook that of berth-hook.
	Runtime, Hook string
	// Config is the configuration that both shall read, "" for the default one.
	Config string
	// Data is berth's data directory.
	Data string
	// Crun means that berth-runtime executes crun.
	Crun bool
	// CountIndices means that policy reads NVIDIA's indices 0 to N-1 as a count.
	CountIndices bool
	// Default makes berth the engine's default runtime.
	Default bool
}

// RestartCommand is the shell command that makes an engine read all of its configuration,
// "" for podman, which reads it at each call.
func RestartCommand(engine string) string {
	switch engine {
	case "docker":
		return "systemctl daemon-reload && systemctl restart docker"
	case "containerd":
		return "systemctl restart containerd"
	}
	return ""
}
