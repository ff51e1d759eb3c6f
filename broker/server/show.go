package server

import (
	"errors"
	"fmt"
	"slices"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/username"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// hideOthers removes from a view what policy.show doesn't show to a user. It is pure but for the names
// of users.
func hideOthers(v ledger.View, uid int, show string) ledger.View {
	if show == "all" {
		return v
	}
	v.Leases, v.Queue = slices.Clone(v.Leases), slices.Clone(v.Queue)
	for i := range v.Leases {
		l := &v.Leases[i]
		if show == "none" && !berth.IsCommandOf(l.Owner, uid) {
			l.Note = ""
		}
		l.Lease = hideHolder(l.Lease, uid, show)
	}
	for i := range v.Queue {
		w := &v.Queue[i]
		l := hideHolder(ledger.Lease{ID: w.ID, Request: w.Request, Owner: w.Owner, Since: w.Since}, uid, show)
		w.ID, w.Request, w.Owner, w.Since = l.ID, l.Request, l.Owner, l.Since
	}
	return v
}

// hideHolder removes from a lease what policy.show doesn't show to a user.
func hideHolder(l ledger.Lease, uid int, show string) ledger.Lease {
	switch {
	case show == "all", berth.IsCommandOf(l.Owner, uid):
	case show == "none":
		l = ledger.Lease{State: l.State, Devices: l.Devices, Owner: ledger.Owner{UID: -1}}
	default:
		name := l.Owner.User
		if name == "" {
			name = username.Find(l.Owner.UID)
		}
		l.Owner = ledger.Owner{EntryPoint: l.Owner.EntryPoint, UID: l.Owner.UID, User: name}
	}
	return l
}

// hideHolders is hideOthers for what a request waits for.
func hideHolders(b ledger.BusyError, uid int, show string) ledger.BusyError {
	b.Holders = slices.Clone(b.Holders)
	for i, l := range b.Holders {
		b.Holders[i] = hideHolder(l, uid, show)
	}
	if show == "none" {
		b.Occupied = nil
	}
	return b
}

// hideOccupied removes from occupied devices the processes of others that policy.show doesn't show.
func hideOccupied(all []gpu.Occupied, show string) []gpu.Occupied {
	if show != "none" {
		return all
	}
	all = slices.Clone(all)
	for i := range all {
		all[i].By = nil
	}
	return all
}

// hideLost returns an error without the holders that one of a lost ledger names, unless policy.show is "all".
func hideLost(err error, show string) error {
	if show != "all" && errors.Is(err, berth.ErrLedgerLost) {
		return fmt.Errorf("%w: root rebuilds it with berth repair", berth.ErrLedgerLost)
	}
	return err
}
