package edits

import (
	"cmp"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Reason is why edits add a thing to a container: the device, driver capability, feature or policy
// that asks for it. It is only for display.
type Reason struct {
	// Kind is "device", "mount", "variable", "annotation", "group", "limit", "mask", "hook" or
	// "network"; "library" or "program" for a file below a mount, "file" for one that is
	// written into the container's root.
	Kind string
	// Name is a path in the container, the number of a group, the host's name of a network
	// device, [Hook.Name], or what a variable, annotation or limit is called.
	Name string
	Why  string
}

// AddReason notes why a thing is added. A thing may have several reasons.
func (e *Edits) AddReason(kind, name, why string) {
	e.Reasons = append(e.Reasons, Reason{kind, name, why})
}

// AddNodes adds nodes for a reason. A node that is there already gets a further reason.
func (e *Edits) AddNodes(why string, nodes ...Node) {
	for _, n := range nodes {
		if !slices.Contains(e.Nodes, n) {
			e.Nodes = append(e.Nodes, n)
		}
		e.AddReason("device", n.Path, why)
	}
}

// AddMounts adds mounts for a reason.
func (e *Edits) AddMounts(why string, mounts ...specs.Mount) {
	for _, m := range mounts {
		e.Mounts = append(e.Mounts, m)
		e.AddReason("mount", m.Destination, why)
	}
}

// SetEnv sets a variable for a reason.
func (e *Edits) SetEnv(why, name, value string) {
	if e.Env == nil {
		e.Env = map[string]string{}
	}
	e.Env[name] = value
	e.AddReason("variable", name, why)
}

// Why returns the reasons of a thing, "" if there are none.
func (e Edits) Why(kind, name string) string {
	var all []string
	for _, r := range e.Reasons {
		if r.Kind == kind && r.Name == name && !slices.Contains(all, r.Why) {
			all = append(all, r.Why)
		}
	}
	return strings.Join(all, ", ")
}

// Name is the command line of the hook.
func (h Hook) Name() string { return cmp.Or(strings.Join(h.Args, " "), h.Path) }
