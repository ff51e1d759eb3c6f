// Package leasing connects a launch with devices: those of a lease of its own, which this process takes from the ledger or for a user from the
// broker, or those of the lease of a berth alloc around it. It also runs commands of the host with a lease (Hold).
package leasing

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/client"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/helper"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher"
)

// userLease implements launcher.DeviceSource in a user namespace, by a lease of the broker.
type userLease struct {
	ownLease
	session *helper.Session
	group   *string // the cgroup of the lease, once there is one
	// detached is Terms.Detached: the process outside doesn't end the lease.
	detached bool
}

// Acquire takes a lease for this process, which the broker moves into the lease's cgroup. The process outside ends it, or, for a
// detached task, the broker when the cgroup is empty.
func (l userLease) Acquire(ctx context.Context, owner ledger.Owner, r request.Request, queued func()) (ledger.Lease, error) {
	granted, err := l.session.Client().Acquire(ctx, protocol.Acquire{
		Request: r.String(), WaitSeconds: l.wait.Seconds(), Name: owner.Name, Command: owner.Command, Descendant: os.Getpid(),
	}, func(b ledger.BusyError) {
		l.waiting(b)
		queued()
	})
	if l.detached && errors.Is(err, helper.ErrGone) {
		return ledger.Lease{}, errors.New("the broker was restarted while the task waited for devices; start the task again")
	}
	if err != nil {
		return ledger.Lease{}, verb.NameRequest(backend.AdviseBroker(err))
	}
	for _, remark := range granted.Remarks {
		verb.PrintError(remark)
	}
	lease := granted.Lease
	*l.group = lease.Owner.Cgroup
	lease.Owner.Runtime = owner.Runtime
	if l.detached {
		return lease, nil
	}
	return lease, l.session.KeepLease(lease.ID, lease.Owner.Cgroup, output.JoinIndexes(lease.Devices))
}

// Release leaves the release to the process outside: this process is in the lease's cgroup.
func (l userLease) Release(context.Context, ledger.Lease) error { return nil }

// Connect sets o.Devices and o.Place for a process that gets the devices of o.Request: those of a lease of its own, or of the berth alloc around it.
// session is that of a user without root, nil for root.
func Connect(c *cli.Context, conf berth.Config, o *launcher.Options, session *helper.Session) error {
	terms := Terms{Wait: waiting.Limit(c), Outer: os.Getenv("BERTH_LEASE"), Job: os.Getenv(jobVariable)}
	if session == nil {
		return ConnectLedger(c.Context, conf, o, terms)
	}
	return ConnectBroker(c.Context, conf, o, session, terms)
}

// ConnectBroker sets o.Devices and o.Place for a launch by root of a user namespace.
func ConnectBroker(ctx context.Context, conf berth.Config, o *launcher.Options, session *helper.Session, terms Terms) error {
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	own := newOwnLease(node, o.Request, terms)
	if terms.Outer != "" {
		lease, err := findUserLease(ctx, node, session, terms.Outer)
		if err != nil {
			return err
		}
		o.Place = func(context.Context) (string, error) { return berth.CommandTasks(lease.Owner.Cgroup), nil }
		if !o.Request.IsZero() {
			o.Devices = sharedLease{own, lease}
		}
		return nil
	}
	if !o.Request.IsZero() {
		group := ""
		o.Devices = userLease{own, session, &group, terms.Detached}
		if terms.Job != "" { // the process outside isn't the last
			o.Devices = rankLease{userLease{own, session, &group, true}, terms.Job}
		}
		o.Place = func(context.Context) (string, error) { return berth.CommandTasks(group), nil }
		return nil
	}
	o.Place = func(ctx context.Context) (string, error) {
		group, placed, err := node.PlaceSelf(ctx)
		if placed && !terms.Detached {
			err = session.KeepCgroup(group)
		}
		if placed || err != nil {
			return berth.CommandTasks(group), err
		}
		group, err = session.Client().Place(ctx, protocol.Cgroup{Descendant: os.Getpid()})
		return berth.CommandTasks(group), backend.AdviseBroker(err)
	}
	return nil
}

// ErrNoLease means that a process is part of no lease.
var ErrNoLease = errors.New("this process is part of no lease")

// FindAround returns the innermost lease that this process is part of, whatever its environment says. This process may be in a user
// namespace. state is the directory of the broker's socket. The error Is ErrNoLease if there is none.
func FindAround(ctx context.Context, node *berth.Node, state string) (lease ledger.Lease, err error) {
	var leases []ledger.Lease
	if userns.OuterUID() == 0 {
		leases, err = node.Leases()
	} else {
		var view ledger.View
		view, err = client.New(state).View(ctx)
		for _, l := range view.Leases {
			leases = append(leases, l.Lease)
		}
		err = backend.AdviseBroker(err)
	}
	if err != nil {
		return lease, err
	}
	own, err := findOwnCgroup(node)
	if err == nil {
		if lease = berth.FindInnermost(leases, own); lease.ID == "" {
			err = ErrNoLease
		}
	}
	return lease, err
}

// ChooseFrom returns a lease with those of its devices that the request asks for. A device that the lease lacks is an error.
func ChooseFrom(ctx context.Context, node *berth.Node, lease ledger.Lease, r request.Request) (ledger.Lease, error) {
	return sharedLease{newOwnLease(node, r, Terms{}), lease}.Acquire(ctx, lease.Owner, r, nil)
}

// findOwnCgroup returns the cgroup of this process.
func findOwnCgroup(node *berth.Node) (string, error) {
	self, err := process.Own("/proc")
	if err != nil {
		return "", err
	}
	return node.Cgroups().ProcessPath("/proc", self)
}

// findUserLease returns the lease of the berth alloc around this process.
func findUserLease(ctx context.Context, node *berth.Node, session *helper.Session, id string) (ledger.Lease, error) {
	view, err := session.Client().View(ctx)
	if err != nil {
		return ledger.Lease{}, backend.AdviseBroker(err)
	}
	own, err := findOwnCgroup(node)
	if err != nil {
		return ledger.Lease{}, err
	}
	for _, l := range view.Leases {
		if l.ID == id && cgroup.IsWithin(own, l.Owner.Cgroup) && l.Owner.Cgroup != "" {
			return l.Lease, nil
		}
	}
	return ledger.Lease{}, fmt.Errorf("this process is not part of lease %.20q; unset BERTH_LEASE to take a lease of its own", id)
}
