// Package isolation keeps a container from the accelerators that it doesn't hold. The
// guarantee is that open(2) fails: the device rules of the container's spec decide what it
// may open, and they are in force before the container's first process runs.
//
// [Wall] is pure but for the stat of bind sources: it reads a spec and returns edits. It
// adds no device that wasn't leased. Its rules are always an allow-list. Nothing is denied
// inside an allowance: cgroup v1 ignores such a denial and runc refuses it.
//
// The rules of the spec alone don't hold a container that has CAP_SYS_ADMIN: it can remove
// its own device program. Package devices puts an outer cgroup around it. Leases are those
// of package ledger, and what a leased device needs is in package cdi.
package isolation

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

// Host is what a wall has to know of the machine.
type Host struct {
	// Majors are the character majors of /proc/devices, all drivers'.
	Majors []gpu.Major
	// Ordinary are devices of an accelerator's major that are none: the DRM nodes of a
	// display beside the accelerators. They are treated like any other device.
	Ordinary []Number
	// Stat finds out what the source of a bind mount is; nil means [Stat].
	Stat func(path string) (Number, bool)
}

// Number names a character device.
type Number struct{ Major, Minor int64 }

func (n Number) String() string { return fmt.Sprintf("%d:%d", n.Major, n.Minor) }

// Wall says what must change in the spec so that of all accelerators of the host
// the container can open the leased nodes and no other. It also lists what is removed.
// For everything that is no accelerator the rules answer as before,
// but for two things: a hole in a wildcard (allow all, then deny 8:0) takes the
// whole major along, and majors that the host doesn't have yet are closed where
// all were open.
//
//   - Nodes of foreign accelerators go, and bind mounts of them. A bind of a
//     directory stays, /dev too: the rules hold.
//   - Allow rules for accelerator majors go; the leased nodes' rules come last,
//     with their Access.
//   - Allow-all becomes a list: each major of the host that is no accelerator's,
//     the ordinary devices of those that are, and all block devices.
//   - CAP_MKNOD goes.
//
// A spec that touches no accelerator, with nothing leased, gets no edits. After
// applying the result, Wall of the new spec changes nothing any more. Rules and
// nodes that runtimes could read as something else are an error that names the
// first one.
func Wall(spec *specs.Spec, h Host, leased []edits.Node) (edits.Edits, []edits.Removal, error) {
	if len(leased) == 0 {
		if concerned, err := AcceleratorInSpec(spec, h); err != nil || !concerned {
			return edits.Edits{}, nil, err
		}
	}
	if err := checkPlain(spec); err != nil {
		return edits.Edits{}, nil, err
	}
	w := wall{accelerators: gpu.AcceleratorMajors(h.Majors), ordinary: h.Ordinary, leased: leased}
	w.filterNodes(spec)
	w.filterMounts(spec, h.statFunction())
	w.writeRules(rulesOf(spec), h)
	w.dropMknod(spec)
	return w.edits, w.removed, nil
}

// AcceleratorInSpec says whether a container of this spec could open an
// accelerator of the host, or carries one: as a node, by a rule (allow-all, and
// a missing list, which crun leaves open, count), or as a bind mount. Majors that the
// kernel assigns to accelerators count on a host without their driver too. Rules and nodes
// that runtimes could read as something else are an error, as they are for [Wall].
func AcceleratorInSpec(spec *specs.Spec, h Host) (bool, error) {
	w := wall{accelerators: gpu.AcceleratorMajors(h.Majors), ordinary: h.Ordinary}
	if err := checkPlain(spec); err != nil {
		return false, err
	}
	if rules := rulesOf(spec); len(rules) == 0 || slices.ContainsFunc(rules, w.opensAccelerator) {
		return true, nil
	}
	w.filterNodes(spec)
	w.filterMounts(spec, h.statFunction())
	return len(w.removed) > 0, nil
}

// wall collects what one call of Wall finds.
type wall struct {
	accelerators map[int64]bool // majors
	ordinary     []Number
	leased       []edits.Node
	edits        edits.Edits
	removed      []edits.Removal
}

func (h Host) statFunction() func(string) (Number, bool) {
	if h.Stat != nil {
		return h.Stat
	}
	return Stat
}

// Reasons of removals.
const (
	whyForeign  = "an accelerator's, beyond what the lease has"
	whyAllowAll = "it opens every device, and those of others with them; the rules list what it left open of the rest"
	whyMknod    = "devices come with the lease: nobody makes nodes of them inside"
)

func (w *wall) noteRemoval(kind, name, source, why string) {
	w.removed = append(w.removed, edits.Removal{Kind: kind, Name: name, Source: source, Why: why})
}

// isForeign says that the device is an accelerator's and isn't leased.
func (w *wall) isForeign(n Number) bool {
	return w.accelerators[n.Major] && !slices.Contains(w.ordinary, n) && !slices.ContainsFunc(w.leased, func(l edits.Node) bool {
		return l.Type == "c" && Number{l.Major, l.Minor} == n
	})
}

func (w *wall) filterNodes(spec *specs.Spec) {
	if spec.Linux == nil {
		return
	}
	for _, d := range spec.Linux.Devices {
		// "u" is a character device too.
		if n := (Number{d.Major, d.Minor}); (d.Type == "c" || d.Type == "u") && w.isForeign(n) {
			w.edits.RemoveNodes = append(w.edits.RemoveNodes, d.Path)
			w.noteRemoval("device", d.Path, "c "+n.String(), whyForeign)
		}
	}
}

func (w *wall) filterMounts(spec *specs.Spec, stat func(string) (Number, bool)) {
	for _, m := range spec.Mounts {
		if !isBind(m) {
			continue
		}
		if n, ok := stat(m.Source); ok && w.isForeign(n) {
			w.edits.RemoveMounts = append(w.edits.RemoveMounts, edits.MountRef{Destination: m.Destination, Source: m.Source})
			w.noteRemoval("mount", m.Destination, m.Source, whyForeign)
		}
	}
}

func isBind(m specs.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

// dropMknod drops the right to make nodes: a node made inside opens only what
// the rules allow, and this is the second line behind them.
func (w *wall) dropMknod(spec *specs.Spec) {
	w.edits.DropCapabilities = []string{"CAP_MKNOD"}
	if spec.Process == nil || spec.Process.Capabilities == nil {
		return
	}
	if slices.Contains(spec.Process.Capabilities.Bounding, "CAP_MKNOD") {
		w.noteRemoval("capability", "CAP_MKNOD", "", whyMknod)
	}
}

// CanLiftDeviceRules says whether the container can take off its own device rules: with
// CAP_SYS_ADMIN it can on version 2 of cgroups, and widen them on version 1. A spec
// that says nothing of capabilities leaves them to the runtime, and counts.
func CanLiftDeviceRules(spec *specs.Spec) bool {
	if spec.Process == nil || spec.Process.Capabilities == nil {
		return true
	}
	c := spec.Process.Capabilities
	for _, set := range [][]string{c.Bounding, c.Effective, c.Permitted, c.Inheritable, c.Ambient} {
		if slices.ContainsFunc(set, func(name string) bool { return strings.EqualFold(name, "CAP_SYS_ADMIN") }) {
			return true
		}
	}
	return false
}

func rulesOf(spec *specs.Spec) []edits.Rule {
	if spec.Linux == nil || spec.Linux.Resources == nil {
		return nil
	}
	rules := make([]edits.Rule, len(spec.Linux.Resources.Devices))
	for i, r := range spec.Linux.Resources.Devices {
		rules[i] = edits.FromSpec(r)
	}
	return rules
}
