package berth

import (
	"strings"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Removal is one thing that a container would have had and wasn't given.
type Removal = edits.Removal

// LogRemovals adds to the event log what a container wasn't given: "prepared" for one with a
// lease, "guarded" for one without, whose lease is "".
func (n *Node) LogRemovals(event, lease string, owner ledger.Owner, removed []Removal) {
	n.ledger.LogRemovals(event, lease, owner, removed)
}

// LoggedRemovals returns what the event log has as last removed from the container of a lease.
func (n *Node) LoggedRemovals(event, lease string) ([]Removal, error) {
	removed, text, err := n.ledger.LoggedRemovals(event, lease)
	if err != nil || removed != nil || text == "" {
		return removed, err
	}
	return ReadNotes(strings.Split(text, "; ")), nil
}

// ReadNotes returns the lines of text that event logs and task records had before both kept lists.
func ReadNotes(notes []string) []Removal { return edits.Remarks(notes) }
