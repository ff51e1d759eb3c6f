// Package wrapper is an OCI runtime that becomes another one.
//
// It stands between an engine and the real runtime (runc, crun). For create, run
// and restore it reads the bundle, takes the lease that the container asks for,
// has the spec prepared, rewrites config.json once, and execs the real runtime:
// the same process, with the words, environment, descriptors, limits and signals
// that the engine gave. A bundle without a request and without an accelerator
// stays as it is. delete runs the real one as a child, then gives back. update goes
// on without device rules. Every other verb execs at once.
//
// It knows nothing of devices: what a request means and what a spec needs is the
// business of a [Node]. It reads no configuration and no environment of its own.
//
// Between lease and exec everything that fails gives the lease back and puts the
// bundle back. After the exec nobody of us is there: a lease whose container
// never came to be is freed by its proof of life.
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

// Node is what the wrapper needs of a machine: its accelerators and who holds
// them.
type Node interface {
	// Concerned says whether a spec without a request could reach an accelerator,
	// so that it has to be prepared without a lease. bundle is its directory.
	Concerned(spec *specs.Spec, bundle string) (bool, error)
	Unruly(spec *specs.Spec, bundle string) (bool, error)
	// Exempt says whether the admin lets a container that asks for nothing see what it
	// would see without berth.
	Exempt(spec *specs.Spec, bundle string) (bool, error)
	// Named says which GPUs and slices device nodes belong to.
	Named(ctx context.Context, nodes []specs.LinuxDevice) ([]gpu.Device, error)
	// Acquire takes a lease for the calling process. It fills in the inventory.
	Acquire(ctx context.Context, ask ledger.Ask) (ledger.Lease, error)
	// Prepare edits the spec for the lease's devices, and walls it off from all
	// others; a nil lease has none. root is the container's root file system. In
	// spec only what package bundle decodes is set, and may be changed. The notes
	// are for Tell; engines take no word from a runtime that succeeds.
	Prepare(ctx context.Context, spec *specs.Spec, lease *ledger.Lease, root *os.File) (removed []edits.Removal, err error)
	// Outer names an outer cgroup for a container that would be in own, which systemd
	// makes or the runtime, if it can lift its own rules and there can be one; Enclose makes it, for a spec that is prepared; Unclose
	// removes it once nobody lives in it or is making its container.
	Outer(spec *specs.Spec, own string, systemd bool) (outer string, ok bool, err error)
	Enclose(ctx context.Context, outer string, spec *specs.Spec) error
	Unclose(ctx context.Context, outer string) error
	// Tell adds to the log of events what was remarkable about a container.
	Tell(event, lease string, owner ledger.Owner, removed []edits.Removal)
	// Release gives a lease back. One that is gone is no error.
	Release(ctx context.Context, id string) error
	// ReleaseIfDead gives a lease back unless its holder lives: then the error Is
	// ledger.ErrLive.
	ReleaseIfDead(ctx context.Context, id string) error
	// Leases lists all leases, those of dead holders too, and says which are which.
	// Held lists them and says nothing, which is quicker. They change nothing.
	Leases() ([]ledger.Status, error)
	Held() ([]ledger.Lease, error)
}

// Trust says which words of strangers are requests.
type Trust = entry.Trust

// Visible is what NVIDIA_VISIBLE_DEVICES means where nothing else asks.
type Visible = entry.Visible

// Options of [Run]. Runtimes, Node, Args and Self are required.
type Options struct {
	// Args is the command line, the program's name first, Env the environment.
	// Both go to the real runtime as they are.
	Args, Env []string
	// Self is a path to the running program, to notice that it would become itself.
	Self string
	// Runtimes lists the real runtimes, the one for new containers first. Beside
	// an error it may list some all the same: those serve the verbs for containers
	// that exist, which a broken configuration doesn't stop.
	Runtimes func() ([]Runtime, error)
	// Node opens the node. It is called only by create, run, restore and delete,
	// and only if there is something to ask.
	Node func() (Node, error)
	// Trust says which words of strangers are requests.
	Trust func() (entry.Trust, error)
	// Cgroup is where the cgroup file system is mounted, "" for the usual place.
	Cgroup string
	// Stderr takes the message of an error.
	Stderr io.Writer
}

// Run does what the command line says. It returns only if it has not become the
// real runtime: with the exit code of a delete, or with 1 after an error, which it
// has reported. The calling goroutine is locked to the main thread.
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
	runtimes, err := o.Runtimes()
	if err != nil && (c.createsContainer() || len(runtimes) == 0) {
		return 1, err
	}
	rt, err := chooseRuntime(runtimes, c)
	if err != nil {
		return 1, err
	}
	if err := rt.checkProgram(o.Self); err != nil {
		return 1, err
	}
	switch {
	case c.createsContainer():
		return 1, o.createContainer(ctx, c, rt)
	case c.verb == "delete" && c.id != "" && !c.opaque:
		return o.deleteContainer(ctx, c, rt)
	case c.verb == "update" && c.resources != "" && !c.opaque:
		return 1, o.updateContainer(c, rt)
	}
	return 1, o.execRealRuntime(rt)
}

func (o Options) execRealRuntime(rt Runtime) error { return execRuntime(rt.Path, o.Args, o.Env) }
