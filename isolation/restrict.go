// Package isolation keeps a container from the accelerators that it doesn't hold. The
// guarantee is that open(2) fails: the device rules of the container's spec decide what it
// may open, and they are in force before the container's first process runs.
//
// [RestrictDevices] is pure but for the stat of bind sources: it reads a spec and returns edits. It
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

// Host has the facts about the machine on which the device rules depend.
type Host struct {
	// Majors are the character majors of /proc/devices, all drivers'.
	Majors []gpu.Major
	// Ordinary lists devices that share a major with accelerators but are not accelerators: the DRM
	// nodes of displays. They are treated like any other device.
	Ordinary []Number
	// Stat returns the device behind the source of a bind mount; nil means [Stat].
	Stat func(path string) (Number, bool)
}

// Number names a character device.
type Number struct{ Major, Minor int64 }

func (n Number) String() string { return fmt.Sprintf("%d:%d", n.Major, n.Minor) }

// RestrictDevices returns the edits after which the container can open the leased nodes and no other
// accelerator of the host, and a list of what they remove. Access to all other devices stays the
// same, with two exceptions: if the spec allows everything and then denies part of a major (allow
// all, deny 8:0), the whole major is denied; and where the spec allows everything, majors that the
// host doesn't have yet are denied.
//
//   - Device nodes and bind mounts of accelerators that aren't leased are removed. Bind mounts of
//     directories stay, even of /dev: the device rules apply there.
//   - Allow rules for accelerator majors are removed; rules for the leased nodes, with their
//     Access, are appended.
//   - Allow-all becomes a list: each major of the host that is no accelerator's,
//     the ordinary devices of those that are, and all block devices.
//   - CAP_MKNOD is dropped.
//
// Without a lease, a spec that reaches no accelerator gets no edits. It is idempotent: it
// returns no edits for a spec to which its edits were applied. The error names the first rule or
// node that runtimes could read differently.
func RestrictDevices(spec *specs.Spec, h Host, leased []edits.Node) (edits.Edits, []edits.Removal, error) {
	if len(leased) == 0 {
		if concerned, err := AcceleratorInSpec(spec, h); err != nil || !concerned {
			return edits.Edits{}, nil, err
		}
	}
	if err := checkPlain(spec); err != nil {
		return edits.Edits{}, nil, err
	}
	w := restriction{accelerators: gpu.AcceleratorMajors(h.Majors), ordinary: h.Ordinary, leased: leased}
	w.filterNodes(spec)
	w.filterMounts(spec, h.statFunction())
	w.writeRules(rulesOf(spec), h)
	w.dropMknod(spec)
	return w.edits, w.removed, nil
}

// AcceleratorInSpec reports whether the spec gives access to an accelerator of the host by a device
// node, a device rule, or a bind mount. "Allow all" counts, and so does a missing rule list, which
// crun treats as "allow all". Majors that the kernel assigns to accelerators count on a host without
// their driver too. Rules and nodes that runtimes could read as something else are an error, as they
// are for [RestrictDevices].
func AcceleratorInSpec(spec *specs.Spec, h Host) (bool, error) {
	w := restriction{accelerators: gpu.AcceleratorMajors(h.Majors), ordinary: h.Ordinary}
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

// restriction collects the results of one call of RestrictDevices.
type restriction struct {
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
	whyForeign  = "it belongs to an accelerator that the lease doesn't have"
	whyAllowAll = "it allows every device, also those of other leases; rules for the other devices replace it"
	whyMknod    = "leased devices come with their nodes, so the container has to make none"
)

func (w *restriction) noteRemoval(kind, name, source, why string) {
	w.removed = append(w.removed, edits.Removal{Kind: kind, Name: name, Source: source, Why: why})
}

// isForeign reports whether the device is an accelerator's and isn't leased.
func (w *restriction) isForeign(n Number) bool {
	return w.accelerators[n.Major] && !slices.Contains(w.ordinary, n) && !slices.ContainsFunc(w.leased, func(l edits.Node) bool {
		return l.Type == "c" && Number{l.Major, l.Minor} == n
	})
}

func (w *restriction) filterNodes(spec *specs.Spec) {
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

func (w *restriction) filterMounts(spec *specs.Spec, stat func(string) (Number, bool)) {
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

// dropMknod drops CAP_MKNOD. This is defense in depth: the device rules also apply to nodes that the
// container creates.
func (w *restriction) dropMknod(spec *specs.Spec) {
	w.edits.DropCapabilities = []string{"CAP_MKNOD"}
	if spec.Process == nil || spec.Process.Capabilities == nil {
		return
	}
	if slices.Contains(spec.Process.Capabilities.Bounding, "CAP_MKNOD") {
		w.noteRemoval("capability", "CAP_MKNOD", "", whyMknod)
	}
}

// CanLiftDeviceRules reports whether the container can change its own device rules. With
// CAP_SYS_ADMIN it can detach its program on cgroup version 2 and widen the list on version 1. A
// spec without capabilities counts, because the runtime chooses them, and so does a name that runtimes
// read in different ways.
func CanLiftDeviceRules(spec *specs.Spec) bool {
	names, given := capabilitiesOf(spec)
	return !given || slices.ContainsFunc(names, func(name string) bool {
		return strings.EqualFold(name, "CAP_SYS_ADMIN") || !isPlainCapability(name)
	})
}

// capabilitiesOf returns the names in all sets of capabilities. given is false if the runtime chooses them.
func capabilitiesOf(spec *specs.Spec) (names []string, given bool) {
	if spec.Process == nil || spec.Process.Capabilities == nil {
		return nil, false
	}
	c := spec.Process.Capabilities
	return slices.Concat(c.Bounding, c.Effective, c.Permitted, c.Inheritable, c.Ambient), true
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
