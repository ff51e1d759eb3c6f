package berth

import (
	"strings"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Removal is one part of a spec that berth has removed from a container, with the reason.
type Removal = edits.Removal

// LogRemovals writes to the event log what was removed from a container. The event is
// "prepared" for a container with a lease, and "guarded" for one without, whose lease is "". A process without root
// can't log, and nothing is written.
func (n *Node) LogRemovals(event, lease string, owner ledger.Owner, removed []Removal) {
	if n.config.UserData != "" { // root's file
		return
	}
	n.ledger.LogRemovals(event, lease, owner, removed)
}

// LoggedRemovals returns the removals of the newest event of this kind for a lease.
func (n *Node) LoggedRemovals(event, lease string) ([]Removal, error) {
	removed, text, err := n.ledger.LoggedRemovals(event, lease)
	if err != nil || removed != nil || text == "" {
		return removed, err
	}
	return ReadNotes(strings.Split(text, "; ")), nil
}

// ReadNotes converts removals from the form that event logs and task records of older
// versions have: lines of text.
func ReadNotes(notes []string) []Removal { return edits.Remarks(notes) }
