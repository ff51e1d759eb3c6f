package server

import (
	"errors"
	"fmt"
	"slices"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// viewer is a user to whom leases are shown, as far as policy.show allows.
type viewer struct {
	uid  int
	show string
	// findName returns the name of a user.
	findName func(uid int) string
}

// newViewer returns a user of this server.
func (s *Server) newViewer(uid int) viewer { return viewer{uid, s.show, s.node.FindUserName} }

// hideOthers removes from a view what the user isn't shown.
func (u viewer) hideOthers(v ledger.View) ledger.View {
	if u.show == "all" {
		return v
	}
	v.Leases, v.Queue = slices.Clone(v.Leases), slices.Clone(v.Queue)
	for i := range v.Leases {
		l := &v.Leases[i]
		if u.show == "none" && !berth.IsCommandOf(l.Owner, u.uid) {
			l.Note = ""
		}
		l.Lease = u.hideHolder(l.Lease)
	}
	for i := range v.Queue {
		w := &v.Queue[i]
		l := u.hideHolder(ledger.Lease{ID: w.ID, Request: w.Request, Owner: w.Owner, Since: w.Since})
		w.ID, w.Request, w.Owner, w.Since = l.ID, l.Request, l.Owner, l.Since
	}
	return v
}

// hideHolder removes from a lease what the user isn't shown.
func (u viewer) hideHolder(l ledger.Lease) ledger.Lease {
	switch {
	case u.show == "all", berth.IsCommandOf(l.Owner, u.uid):
	case u.show == "none":
		l = ledger.Lease{State: l.State, Devices: l.Devices, Owner: ledger.Owner{UID: -1}}
	default:
		name := l.Owner.User
		if name == "" {
			name = u.findName(l.Owner.UID)
		}
		l.Owner = ledger.Owner{
			EntryPoint: l.Owner.EntryPoint, UID: l.Owner.UID, User: name,
			Login: l.Owner.Login, LoginUser: l.Owner.LoginUser, LoginFrom: l.Owner.LoginFrom,
		}
	}
	return l
}

// hideHolders is hideOthers for what a request waits for.
func (u viewer) hideHolders(b ledger.BusyError) ledger.BusyError {
	b.Holders = slices.Clone(b.Holders)
	for i, l := range b.Holders {
		b.Holders[i] = u.hideHolder(l)
	}
	if u.show == "none" {
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
