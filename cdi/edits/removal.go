package edits

import (
	"fmt"
	"strings"
)

// Removal is one thing that berth has removed from a container's spec, or a remark about what the
// container gets. It is part of the format of event logs and task records.
type Removal struct {
	// Kind is "device", "mount", "rule", "capability", or "note" for a remark.
	Kind string `json:"kind"`
	// Name is the path in the container, what a rule or capability is called, or the
	// text of a remark.
	Name string `json:"name"`
	// Source is what it is on the host: a path, or a device's type and numbers
	// ("c 195:2").
	Source string `json:"source,omitempty"`
	Why    string `json:"why,omitempty"`
	// Urgent remarks are shown to the user at once.
	Urgent bool `json:"-"`
}

// Remark returns a remark.
func Remark(format string, args ...any) Removal {
	return Removal{Kind: "note", Name: fmt.Sprintf(format, args...)}
}

// Remarks returns a remark for each text.
func Remarks(texts []string) []Removal {
	var all []Removal
	for _, text := range texts {
		all = append(all, Removal{Kind: "note", Name: text})
	}
	return all
}

// String is one line for people. Nothing reads it back.
func (r Removal) String() string {
	switch r.Kind {
	case "note":
		return r.Name
	case "device":
		return fmt.Sprintf("node %s (%s)", r.Name, strings.TrimPrefix(r.Source, "c "))
	case "mount":
		return fmt.Sprintf("mount of %s at %s", r.Source, r.Name)
	}
	return r.Kind + " " + r.Name
}
