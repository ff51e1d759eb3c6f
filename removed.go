package berth

import (
	"strings"

	"github.com/berth-gpu/berth/cdi"
)

// Removal is one thing that a container would have had, and was not given.
type Removal struct {
	// Kind is "device", "mount", "rule", "capability", or "note" for what else is
	// remarkable.
	Kind string `json:"kind"`
	// Name is the path in the container, or what a rule or capability is called.
	Name string `json:"name"`
	// Source is what it is on the host: a path, or a device's numbers.
	Source string `json:"source,omitempty"`
	Why    string `json:"why,omitempty"`
}

// Removals reads the notes of [Node.Prepare].
func Removals(notes []string) (all []Removal) {
	const beyond = "an accelerator's, beyond what the lease has"
	for _, note := range notes {
		r := Removal{Kind: "note", Name: note}
		kind, rest, _ := strings.Cut(note, " ")
		switch kind {
		case "node":
			r = Removal{Kind: "device", Name: rest, Why: beyond}
			r.Name, r.Source = numbered(rest)
		case "mount":
			r = Removal{Kind: "mount", Why: beyond}
			source, at, _ := strings.Cut(strings.TrimPrefix(rest, "of "), " at ")
			r.Name, _ = numbered(at)
			r.Source = source
		case "rule":
			r = Removal{Kind: "rule", Name: rest, Why: beyond}
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

// LowLimits are those of the notes of [Node.Prepare] that people want to know at once: which
// limits are too low for the leased NICs.
func LowLimits(notes []string) (low []string) {
	for _, note := range notes {
		if cdi.IsLow(note) {
			low = append(low, note)
		}
	}
	return low
}

// numbered takes the numbers of a device off behind its path.
func numbered(text string) (path, numbers string) {
	at := strings.LastIndex(text, " (")
	if at < 0 || !strings.HasSuffix(text, ")") {
		return text, ""
	}
	return text[:at], "c " + text[at+2:len(text)-1]
}
