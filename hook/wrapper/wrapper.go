// Package wrapper is an OCI runtime that becomes another one.
//
// It stands between an engine and the real runtime (runc, crun). For create, run and
// restore it reads the bundle, takes the lease that the container asks for, has the spec
// prepared, rewrites config.json once, and execs the real runtime: the same process,
// with the command line, environment, descriptors and limits that the engine gave. A
// bundle without a request and without an accelerator stays as it is. delete runs the
// real runtime as a child, and then releases what the container held. update loses its
// device rules. checkpoint of a container that holds a lease, and restore of one that asks
// for devices, are refused. Every other verb execs at once.
//
// The package knows nothing of devices: a [Node] interprets requests and edits specs. It
// reads no configuration and no environment of its own.
//
// An error between lease and exec releases the lease and restores the bundle. After the
// exec no process of berth's runs: if the container never comes to be, the ledger
// releases its lease once the holder is dead.
package wrapper

import (
	"context"
	"io"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/hook/entry"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Node is what the wrapper needs of a machine.
type Node interface {
	// CanReachAccelerator reports whether a container without a request could reach an
	// accelerator: then it is prepared without a lease. bundle is its directory.
	CanReachAccelerator(spec *specs.Spec, bundle string) (bool, error)
	// CanLiftDeviceRules reports whether a container without a request could remove its
	// device rules and then reach an accelerator.
	CanLiftDeviceRules(spec *specs.Spec, bundle string) (bool, error)
	// IsExempt reports whether the admin's policy exempts a container without a request
	// from isolation.
	IsExempt(spec *specs.Spec, bundle string) (bool, error)
	// IdentifyDevices returns the GPUs and MIG slices to which device nodes belong.
	IdentifyDevices(ctx context.Context, nodes []specs.LinuxDevice) ([]gpu.Device, error)
	// Acquire takes a lease for this process. The node sets the inventory of ask.
	Acquire(ctx context.Context, ask ledger.Ask) (ledger.Lease, error)
	// Prepare edits the spec: it adds the lease's devices, none if lease is nil, and
	// isolates the container from all others. root is the container's root file system.
	// Only the fields that package bundle decodes are set, and may be changed. What was
	// removed is for LogRemovals: engines discard stderr when a runtime succeeds.
	Prepare(ctx context.Context, spec *specs.Spec, lease *ledger.Lease, root *os.File) (removed []edits.Removal, err error)
	// OuterCgroupPath names an outer cgroup for a container that systemd or the runtime
	// would put into own. ok is false if there can be none, or if the container needs none: it
	// cannot lift its device rules and, if it is to have a lease, the device guard is off.
	// CreateOuterCgroup creates it for a prepared spec.
	// RemoveOuterCgroup removes it once no process lives in it or creates its container.
	OuterCgroupPath(spec *specs.Spec, own string, systemd, leased bool) (outer string, ok bool, err error)
	CreateOuterCgroup(ctx context.Context, outer string, spec *specs.Spec) error
	RemoveOuterCgroup(ctx context.Context, outer string) error
	// LogRemovals writes an event to the event log.
	LogRemovals(event, lease string, owner ledger.Owner, removed []edits.Removal)
	// Release releases a lease. A lease that does not exist is not an error.
	Release(ctx context.Context, id string) error
	// ReleaseIfDead releases a lease unless its holder lives: then the error Is
	// ledger.ErrLive.
	ReleaseIfDead(ctx context.Context, id string) error
	// Leases lists all leases with the state of their holders. ReadLeases lists them without,
	// which is faster. Both only read.
	Leases() ([]ledger.Status, error)
	ReadLeases() ([]ledger.Lease, error)
}

// Trust is the policy on requests that may come from an untrusted image.
type Trust = entry.Trust

// Visible is the meaning of NVIDIA_VISIBLE_DEVICES in a container without another
// request.
type Visible = entry.Visible

// Options of [Run]. Runtimes, Node, Args and Self are required.
type Options struct {
	// Args is the command line, the program's name first. Env is the environment. Both
	// go to the real runtime as they are.
	Args, Env []string
	// Self is a path of the running program, which may not be its own real runtime.
	Self string
	// Runtimes lists the real runtimes, the one for new containers first. It may return
	// runtimes beside an error of the configuration: they serve existing containers, and new
	// ones that have nothing to do with accelerators.
	Runtimes func() ([]Runtime, error)
	// Node opens the node. Only create, run, restore, checkpoint and delete call it.
	Node func() (Node, error)
	// Unconfigured opens the node with the default configuration. Only create, run and
	// restore call it, if Runtimes returns an error.
	Unconfigured func() (Node, error)
	// Trust returns the policy on requests. Only create, run and restore call it.
	Trust func() (entry.Trust, error)
	// Cgroup is the mount point of the cgroup file system, "" for /sys/fs/cgroup.
	Cgroup string
	// Stderr receives error messages.
	Stderr io.Writer
}

// Run executes the command line. It returns only if it has not become the real runtime:
// with the exit code of a delete, or with 1 after an error, which it has reported. The
// calling goroutine is locked to the main thread.
func Run(ctx context.Context, o Options) int {
	c := parseArgs(o.Args)
	code, err := o.dispatch(ctx, c)
	if err != nil {
		reportError(o.Stderr, c, err)
		return 1
	}
	return code
}

func (o Options) dispatch(ctx context.Context, c call) (int, error) {
	runtimes, configError := o.Runtimes()
	if configError != nil && len(runtimes) == 0 {
		return 1, configError
	}
	rt, err := chooseRuntime(runtimes, c)
	if err != nil {
		return 1, err
	}
	if err := rt.checkProgram(o.Self); err != nil {
		return 1, err
	}
	switch {
	case c.createsContainer() && configError != nil:
		return 1, o.createUnconfigured(c, rt, configError)
	case c.createsContainer():
		return 1, o.createContainer(ctx, c, rt)
	case c.verb == "delete" && c.id != "" && !c.opaque:
		return o.deleteContainer(ctx, c, rt)
	case c.verb == "update" && c.resources != "" && !c.opaque:
		return 1, o.updateContainer(c, rt)
	case c.verb == "checkpoint" && c.id != "" && !c.opaque:
		return 1, o.checkpointContainer(c, rt)
	case c.verb == "exec" && c.id != "" && !c.opaque:
		return 1, o.execInContainer(c, rt)
	}
	return 1, o.execRealRuntime(rt)
}

func (o Options) execRealRuntime(rt Runtime) error { return execRuntime(rt.Path, o.Args, o.Env) }
