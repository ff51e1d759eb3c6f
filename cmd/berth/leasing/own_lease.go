package leasing

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// ConnectLedger sets o.Devices for a launch with devices: a lease of its own, or devices of the lease of the berth alloc
// around this process.
func ConnectLedger(ctx context.Context, conf berth.Config, o *launcher.Options, terms Terms) error {
	if o.Request.IsZero() {
		return nil
	}
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	if o.Request.GPUs() {
		if err := node.MountFiles(ctx); err != nil {
			return err
		}
	}
	own := newOwnLease(node, o.Request, terms)
	if terms.Outer == "" {
		o.Devices = own
		return nil
	}
	lease, err := node.FindOwnLease(terms.Outer)
	if err != nil {
		// Not wrapped: the text has its advice, and ExitStatus must not add another.
		return errors.New(err.Error() + "; unset BERTH_LEASE to take a lease of its own")
	}
	o.Parent = berth.CommandTasks(lease.Owner.Cgroup)
	o.Devices = sharedLease{own, lease}
	return nil
}

// Terms say how a launch gets its devices.
type Terms struct {
	// Wait is how long to wait for busy devices; a negative value means for ever.
	Wait time.Duration
	// Outer is the id of the lease of a berth alloc around the launch, whose devices it gets; "" for a lease of its own.
	Outer string
	// Job is the file of the MPI job whose lease the launch shares, "" for none: see NameJob.
	Job string
	// Network is the kind of a gang's network, "" for a task.
	Network string
	// Detached: the lease ends with the task or gang, and not with the berth run that has started it.
	Detached bool
}

// ownLease implements launcher.Devices by a lease of the task's own.
type ownLease struct {
	node    *berth.Node
	request request.Request
	wait    time.Duration
	waiting func(ledger.BusyError)
	// network is the kind of a gang's network, "" for a task.
	network string
	// remark prints urgent remarks; nil prints none.
	remark func(removed []berth.Removal)
}

func newOwnLease(node *berth.Node, r request.Request, terms Terms) ownLease {
	return ownLease{
		node: node, request: r, wait: terms.Wait, waiting: waiting.NewWaitPrinter(time.Now()),
		network: terms.Network, remark: waiting.NewRemarkPrinter(),
	}
}

func (l ownLease) Programs(ctx context.Context, env []string) (map[string]string, error) {
	if err := l.node.CheckGrantable(ctx, l.request); err != nil {
		return nil, verb.NameRequest(err)
	}
	if !l.request.GPUs() {
		return nil, nil // no devices: the node may have no driver
	}
	return l.node.Programs(ctx, env)
}

func (l ownLease) Acquire(ctx context.Context, owner ledger.Owner, r request.Request, queued func()) (ledger.Lease, error) {
	waiting := func(b ledger.BusyError) {
		l.waiting(b)
		queued()
	}
	lease, err := l.node.Acquire(ctx, ledger.Ask{Owner: owner, Request: r, Wait: l.wait, Waiting: waiting})
	return lease, verb.NameRequest(err)
}

func (l ownLease) Prepare(ctx context.Context, lease ledger.Lease, spec *specs.Spec, root *os.File) (launcher.Prepared, error) {
	if l.network != "" {
		if spec.Annotations == nil {
			spec.Annotations = map[string]string{}
		}
		spec.Annotations[berth.NetworkAnnotation] = l.network
	}
	removed, err := l.node.Prepare(ctx, spec, &lease, root)
	if err != nil {
		return launcher.Prepared{}, err
	}
	if len(removed) > 0 {
		l.node.LogRemovals("prepared", lease.ID, lease.Owner, removed)
	}
	if l.remark != nil {
		l.remark(removed)
	}
	cpus, err := l.node.CPUs(ctx, lease)
	return launcher.Prepared{CPUs: cpus, Removed: removed}, err
}

func (l ownLease) Divide(ctx context.Context, lease ledger.Lease) ([][]gpu.Device, error) {
	inv, err := l.node.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	return match.Divide(inv, l.request, lease.Devices)
}

func (l ownLease) CPUs(ctx context.Context, lease ledger.Lease) (string, error) {
	return l.node.CPUs(ctx, lease)
}

func (l ownLease) Release(ctx context.Context, lease ledger.Lease) error {
	return l.node.Release(ctx, lease.ID)
}
