package berth

import (
	"strings"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Removal is one thing that a container would have had and wasn't given.
type Removal = edits.Removal

// Tell adds to the event log what a container wasn't given: "prepared" for one with a
// lease, "guarded" for one without, whose lease is "".
func (n *Node) Tell(event, lease string, owner ledger.Owner, removed []Removal) {
	n.ledger.Tell(event, lease, owner, removed)
}

// Told returns what the event log has as last removed from the container of a lease.
func (n *Node) Told(event, lease string) ([]Removal, error) {
	removed, text, err := n.ledger.Told(event, lease)
	if err != nil || removed != nil || text == "" {
		return removed, err
	}
	return ReadNotes(strings.Split(text, "; ")), nil
}

// ReadNotes reads removals as event logs and task records have them that were written
// before both kept lists: one line of text each. It is a guess where a path contains
// what separates the parts of a line.
func ReadNotes(notes []string) (all []Removal) {
	const foreign = "an accelerator's, beyond what the lease has"
	for _, note := range notes {
		r := edits.Remark("%s", note)
		kind, rest, _ := strings.Cut(note, " ")
		switch kind {
		case "node":
			r = Removal{Kind: "device", Why: foreign}
			r.Name, r.Source = splitNumbers(rest)
		case "mount":
			r = Removal{Kind: "mount", Why: foreign}
			source, at, _ := strings.Cut(strings.TrimPrefix(rest, "of "), " at ")
			r.Name, _ = splitNumbers(at)
			r.Source = source
		case "rule":
			r = Removal{Kind: "rule", Name: rest, Why: foreign}
		case "rules":
			r = Removal{Kind: "rule", Name: "allow a *:* rwm", Why: "it opens every device, and those of others with them; the rules list what it left open of the rest"}
		case "access":
			name, why, _ := strings.Cut(strings.TrimPrefix(rest, "to all of "), ", for ")
			r = Removal{Kind: "rule", Name: name, Why: why}
		case "capability":
			r = Removal{Kind: "capability", Name: rest, Why: "devices come with the lease: nobody makes nodes of them inside"}
		}
		all = append(all, r)
	}
	return all
}

// splitNumbers splits "/dev/nvidia2 (195:2)".
func splitNumbers(text string) (path, numbers string) {
	at := strings.LastIndex(text, " (")
	if at < 0 || !strings.HasSuffix(text, ")") {
		return text, ""
	}
	return text[:at], "c " + text[at+2:len(text)-1]
}
